package sqlite

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/gobridge/gobridge"
)

// The first bytes of what the tables hold: which kind of record, which version. A
// salvage recognises records by them.
var (
	recordMagic = []byte{'g', 'B', 'R', 1}
	letterMagic = []byte{'g', 'B', 'D', 1}
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendRecord appends the stored form of an outbox record: magic, generation,
// time of persisting (ns), route, binding, address, length and bytes of the
// envelope, CRC-32C of all that. Seq and the counts of sends are columns.
func appendRecord(dst []byte, r *gobridge.OutboxRecord) []byte {
	start := len(dst)
	dst = append(dst, recordMagic...)
	dst = binary.AppendUvarint(dst, uint64(max(r.Generation, 0)))
	dst = binary.AppendVarint(dst, nanos(r.PersistedAt))
	dst = appendText(dst, r.RouteID)
	dst = appendText(dst, r.BindingID)
	dst = appendText(dst, r.Address)
	return seal(gobridge.AppendEnvelope(dst, &r.Envelope), start)
}

// decodeRecord reads what appendRecord made. The payload of the result shares b.
func decodeRecord(b []byte, r *gobridge.OutboxRecord) error {
	d, err := unseal(b, recordMagic)
	if err != nil {
		return fmt.Errorf("outbox record: %w", err)
	}
	r.Generation = d.count()
	r.PersistedAt = d.nanos()
	r.RouteID = d.text()
	r.BindingID = d.text()
	r.Address = d.text()
	if r.Envelope, err = d.envelope(); err != nil {
		return fmt.Errorf("outbox record: %w", err)
	}
	return nil
}

// appendLetter appends the stored form of a dead letter: magic, replays, attempts,
// first and last time (ns), id, key, route, binding, source, category, code, last
// error, address, envelope, CRC-32C.
func appendLetter(dst []byte, l *gobridge.DeadLetter) []byte {
	start := len(dst)
	dst = append(dst, letterMagic...)
	dst = binary.AppendUvarint(dst, uint64(max(l.Replays, 0)))
	dst = binary.AppendUvarint(dst, uint64(max(l.Attempts, 0)))
	for _, t := range [...]time.Time{l.FirstAt, l.LastAt} {
		dst = binary.AppendVarint(dst, nanos(t))
	}
	for _, s := range [...]string{
		l.ID, l.Key, l.RouteID, l.BindingID, l.SourceID, string(l.Category), string(l.Code), l.LastError, l.Address,
	} {
		dst = appendText(dst, s)
	}
	return seal(gobridge.AppendEnvelope(dst, &l.Envelope), start)
}

// decodeLetter reads what appendLetter made. The payload of the result shares b.
func decodeLetter(b []byte) (*gobridge.DeadLetter, error) {
	d, err := unseal(b, letterMagic)
	if err != nil {
		return nil, fmt.Errorf("dead letter: %w", err)
	}
	l := new(gobridge.DeadLetter)
	l.Replays = d.count()
	l.Attempts = d.count()
	l.FirstAt = d.nanos()
	l.LastAt = d.nanos()
	for _, s := range [...]*string{&l.ID, &l.Key, &l.RouteID, &l.BindingID, &l.SourceID} {
		*s = d.text()
	}
	l.Category, l.Code = gobridge.Category(d.text()), gobridge.Code(d.text())
	l.LastError, l.Address = d.text(), d.text()
	if l.Envelope, err = d.envelope(); err != nil {
		return nil, fmt.Errorf("dead letter: %w", err)
	}
	return l, nil
}

func appendText(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// seal appends the checksum of what follows start.
func seal(b []byte, start int) []byte {
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

// unseal checks magic and checksum and returns a reader of what is between them.
func unseal(b, magic []byte) (*fields, error) {
	end := len(b) - 4
	if end < len(magic) || crc32.Checksum(b[:end], castagnoli) != binary.LittleEndian.Uint32(b[end:]) {
		return nil, fmt.Errorf("checksum of %d bytes: %w", len(b), gobridge.ErrDamaged)
	}
	if !bytes.Equal(b[:len(magic)], magic) {
		return nil, fmt.Errorf("begins with %q, want %q (run the newer version of gobridge)", b[:len(magic)], magic)
	}
	return &fields{b: b[len(magic):end:end]}, nil
}

// fields reads what append functions wrote; after a bad field it yields nothing.
type fields struct {
	b   []byte
	bad bool
}

func (d *fields) skip(n int) {
	if d.bad = d.bad || n <= 0; !d.bad {
		d.b = d.b[n:]
	}
}

func (d *fields) count() int {
	v, n := binary.Uvarint(d.b)
	d.bad = d.bad || v > math.MaxInt32
	if d.skip(n); d.bad {
		return 0
	}
	return int(v)
}

func (d *fields) nanos() time.Time {
	v, n := binary.Varint(d.b)
	d.skip(n)
	return timeOf(v)
}

// nanos is the stored form of a time: Unix nanoseconds, 0 for none.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func timeOf(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos).UTC()
}

func (d *fields) text() string {
	n := d.count()
	if d.bad = d.bad || n > len(d.b); d.bad {
		return ""
	}
	s := string(d.b[:n])
	d.b = d.b[n:]
	return s
}

// envelope reads the envelope, which comes last.
func (d *fields) envelope() (gobridge.Envelope, error) {
	if d.bad {
		return gobridge.Envelope{}, fmt.Errorf("shape: %w", gobridge.ErrDamaged)
	}
	return gobridge.DecodeEnvelope(d.b)
}
