package sqlite

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/bits"
	"os"

	"github.com/gobridge/gobridge"
)

// walLog is what a write-ahead log holds (https://sqlite.org/fileformat2.html#walformat).
//
// SQLite takes the first frame with a wrong checksum for the end of the log: after a
// loss of power that is where the last transaction was torn. Damage in the middle
// looks the same, and whatever was committed after it would be gone without a word.
// So the log is read past that frame, for a proof that commits came after it.
type walLog struct {
	size   int              // of a page, in bytes
	count  uint32           // pages of the database after the last commit, 0 without one
	frames map[uint32]int64 // offsets of the newest version of pages
	under  map[uint32]int64 // as in pages
	// damaged is the number of the first frame that SQLite would stop at although
	// later ones were committed, counted from 1; 0 when there is none.
	damaged int
	cut     bool // the log has had more frames
}

const (
	logHeaderBytes   = 32
	frameHeaderBytes = 24
	// readAhead is read at once.
	readAhead = 256 << 10
)

// frame is one frame after the first that cannot be read.
type frame struct {
	page, commit uint32
	at           int64 // of the page
	mine         bool  // it has the salt of this log
	// linked: the checksum continues the one written in the frame before, so both were
	// written as they are.
	linked bool
}

// readLog reads a log. index is the path of its shared memory; size is that of a page
// in case that the log has no readable header.
func readLog(r io.ReaderAt, index string, size int) (*walLog, error) {
	l := &walLog{size: size, frames: map[uint32]int64{}, under: map[uint32]int64{}}
	header := make([]byte, logHeaderBytes)
	if _, err := r.ReadAt(header, 0); err != nil {
		return l, ignoreShort(err)
	}
	magic := binary.BigEndian.Uint32(header)
	big := magic == 0x377f0683
	var sum [2]uint32 // as the frame before has it
	logSum(&sum, header[:24], big)
	chained := magic&^1 == 0x377f0682 && sum == sumIn(header[24:])
	salt := bytes.Clone(header[16:24])
	if chained {
		l.size = pageSize(binary.BigEndian.Uint32(header[8:]))
	} else {
		big = false // as the driver writes it
		// The second frame has the salt too: what hit the header may have hit the first.
		if _, err := r.ReadAt(salt, int64(logHeaderBytes+frameHeaderBytes+l.size+8)); err != nil {
			return l, ignoreShort(err)
		}
	}

	b := make([]byte, frameHeaderBytes+l.size)
	pending := map[uint32]int64{}
	var rest []frame
	whole, committed := 0, 0 // frames that SQLite can read, and up to the last commit of them
	proved := false
	from := bufio.NewReaderSize(io.NewSectionReader(r, logHeaderBytes, math.MaxInt64-logHeaderBytes), readAhead)
	for at := int64(logHeaderBytes); ; at += int64(len(b)) {
		if _, err := io.ReadFull(from, b); err != nil {
			if err := ignoreShort(err); err != nil {
				return nil, err
			}
			break
		}
		logSum(&sum, b[:8], big)
		logSum(&sum, b[frameHeaderBytes:], big)
		f := frame{
			page: binary.BigEndian.Uint32(b), commit: binary.BigEndian.Uint32(b[4:]), at: at + frameHeaderBytes,
			mine: bytes.Equal(b[8:16], salt), linked: sum == sumIn(b[16:]),
		}
		f.linked = f.linked && f.mine
		sum = sumIn(b[16:])
		if chained = chained && f.linked; chained {
			whole++
			pending[f.page] = f.at
			if f.commit != 0 {
				committed = whole
				l.count = f.commit
				maps.Copy(l.frames, pending)
				clear(pending)
			}
			continue
		}
		if n := len(rest); n > 0 && f.linked {
			// A frame is written after a commit only when that had reached the disk. The
			// same page committed twice in a row may fill up a sector.
			before := rest[n-1]
			proved = proved || before.mine && before.commit != 0 && (f.commit == 0 || f.page != before.page)
		}
		rest = append(rest, f)
	}
	confirmed := confirmedFrames(index, salt)
	if !proved && confirmed <= committed {
		return l, nil
	}
	l.damaged, l.cut = whole+1, confirmed > whole+len(rest)
	last := len(rest) // of those that were committed
	for last > max(confirmed-whole, 0) && (!rest[last-1].mine || rest[last-1].commit == 0) {
		last--
	}
	if last > 0 {
		maps.Copy(l.frames, pending) // a commit came later
	}
	for _, f := range rest[:last] {
		switch {
		case f.linked:
			delete(l.under, f.page)
			l.count = max(l.count, f.commit)
		case f.page == 0:
			continue
		default:
			if _, found := l.under[f.page]; !found {
				l.under[f.page] = l.frames[f.page]
			}
		}
		l.frames[f.page] = f.at
	}
	return l, nil
}

// confirmedFrames is how many frames of the log with that salt had reached the disk
// when its last commit was confirmed, as the shared memory tells: SQLite writes that
// after the sync. 0 is unknown.
func confirmedFrames(index string, salt []byte) int {
	b := make([]byte, 48)
	f, err := os.Open(index)
	if err != nil {
		return 0
	}
	defer f.Close()
	if _, err := f.ReadAt(b, 0); err != nil {
		return 0
	}
	var sum [2]uint32
	logSum(&sum, b[:40], false)
	stored := [2]uint32{binary.LittleEndian.Uint32(b[40:]), binary.LittleEndian.Uint32(b[44:])}
	if sum != stored || !bytes.Equal(b[32:40], salt) {
		return 0
	}
	return int(binary.LittleEndian.Uint32(b[16:]))
}

// checkLog returns an error with gobridge.ErrDamaged when the log of a database that
// nobody has open holds commits that SQLite would not see.
func checkLog(path string) error {
	p, err := openPages(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.close()
	if p.damaged > 0 {
		return fmt.Errorf("frame %d of %s-wal cannot be read, and more was committed after it: %w", p.damaged, path, gobridge.ErrDamaged)
	}
	return nil
}

func sumIn(b []byte) [2]uint32 {
	return [2]uint32{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
}

func ignoreShort(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// logSum continues the checksum of a write-ahead log, whose words are big endian or
// little endian. A log is read at every open: this is most of the time it takes.
func logSum(sum *[2]uint32, b []byte, big bool) {
	s0, s1 := sum[0], sum[1]
	for ; len(b) >= 8; b = b[8:] {
		x, y := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
		if big {
			x, y = bits.ReverseBytes32(x), bits.ReverseBytes32(y)
		}
		s0 += x + s1
		s1 += y + s0
	}
	sum[0], sum[1] = s0, s1
}
