package sqlite

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

// pages reads a database file below the level of tables: whatever is wrong with the
// structure above them, leaf pages that are whole give up their rows. It sees the
// file as SQLite does after a crash, with the committed frames of the write-ahead
// log in the place of the pages that they replace
// (https://sqlite.org/fileformat2.html).
type pages struct {
	db, wal *os.File
	size    int              // of a page, in bytes
	count   uint32           // of pages
	frames  map[uint32]int64 // offsets in wal of the newest version of pages
	// under has the offset of the version before, 0 for that in the database, of pages
	// whose newest one is in a damaged frame.
	under   map[uint32]int64
	damaged int  // as in walLog
	cut     bool // the log, or the database, has had more than is there
}

const (
	leafTable   = 0x0d // a leaf page of a table with rowids
	leafIndex   = 0x0a // a leaf page of an index, or of a table without rowids
	innerIndex  = 0x02 // an interior page of the same: its cells are rows too
	headerBytes = 100  // of the file header, on page 1
)

// fileMagic begins every database.
var fileMagic = []byte("SQLite format 3\x00")

func openPages(path string) (*pages, error) {
	db, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	p := &pages{db: db}
	header := make([]byte, headerBytes)
	// A short or broken header leaves the size of pages to the default.
	_, _ = db.ReadAt(header, 0)
	p.size = pageSize(uint32(binary.BigEndian.Uint16(header[16:])))
	info, err := db.Stat()
	if err != nil {
		p.close()
		return nil, err
	}
	p.count = uint32(min((info.Size()+int64(p.size)-1)/int64(p.size), 1<<32-2))
	there, named := p.count, uint32(0) // pages of the file, and those that it should have
	if bytes.HasPrefix(header, fileMagic) {
		named = binary.BigEndian.Uint32(header[28:])
	}
	if p.wal, err = os.Open(path + "-wal"); err == nil {
		var l *walLog
		if l, err = readLog(p.wal, path+"-shm", p.size); err == nil {
			p.size, p.frames, p.under, p.damaged, p.cut = l.size, l.frames, l.under, l.damaged, l.cut
			if l.count > 0 {
				p.count, named = l.count, l.count
			}
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		p.close()
		return nil, err
	}
	for n := there + 1; n <= named && !p.cut; n++ {
		p.cut = p.frames[n] == 0
	}
	return p, nil
}

func (p *pages) close() {
	_ = p.db.Close() // read only
	if p.wal != nil {
		_ = p.wal.Close()
	}
}

// pageSize is n if SQLite allows that, else the default; 1 stands for 65536.
func pageSize(n uint32) int {
	if n == 1 {
		n = 65536
	}
	if n < 512 || n > 65536 || n&(n-1) != 0 {
		return 4096
	}
	return int(n)
}

// read fills buf, of one page, with page n.
func (p *pages) read(n uint32, buf []byte) error {
	if n == 0 || n > p.count {
		return fmt.Errorf("page %d of %d", n, p.count)
	}
	return p.readAt(n, p.frames[n], buf)
}

// readAt reads the version of page n at an offset of the log; 0 is the one in the
// database.
func (p *pages) readAt(n uint32, at int64, buf []byte) error {
	var err error
	if at > 0 {
		_, err = p.wal.ReadAt(buf, at)
	} else {
		_, err = p.db.ReadAt(buf, int64(n-1)*int64(p.size))
	}
	return err
}

// free returns the pages of the freelist, as far as that can be read: what they
// hold was deleted.
func (p *pages) free() map[uint32]bool {
	free := map[uint32]bool{}
	buf := make([]byte, p.size)
	if p.read(1, buf) != nil || !bytes.HasPrefix(buf, fileMagic) {
		return free
	}
	for trunk := binary.BigEndian.Uint32(buf[32:]); trunk != 0 && !free[trunk]; trunk = binary.BigEndian.Uint32(buf) {
		if p.read(trunk, buf) != nil {
			break
		}
		n := binary.BigEndian.Uint32(buf[4:])
		if n > uint32(p.size/4-2) || buf[0] == leafTable {
			break
		}
		free[trunk] = true
		for i := range n {
			free[binary.BigEndian.Uint32(buf[8+4*i:])] = true
		}
	}
	return free
}

// rows calls f for every row in the leaf pages, and in the interior pages of indexes.
// Rows of one table are not told from those of another. rowid is 0 and inIndex true
// for a row of an index or of a table without rowids. Of a page in a damaged frame
// the version before is read as well, without rows of an index: they would tell of
// messages that have long been completed.
func (p *pages) rows(f func(rowid int64, record []byte, inIndex bool) error) error {
	free := p.free()
	buf := make([]byte, p.size)
	for n := uint32(1); n <= p.count; n++ {
		if free[n] {
			continue
		}
		if p.read(n, buf) == nil {
			if err := p.rowsOf(n, buf, f); err != nil {
				return err
			}
		}
		at, damaged := p.under[n]
		if !damaged || p.readAt(n, at, buf) != nil {
			continue
		}
		err := p.rowsOf(n, buf, func(rowid int64, record []byte, inIndex bool) error {
			if inIndex {
				return nil
			}
			return f(rowid, record, inIndex)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// rowsOf calls f for every row in one version of page n.
func (p *pages) rowsOf(n uint32, page []byte, f func(rowid int64, record []byte, inIndex bool) error) error {
	header := 0
	if n == 1 {
		header = headerBytes
	}
	kind := page[header]
	if kind != leafTable && kind != leafIndex && kind != innerIndex {
		return nil
	}
	cells := int(binary.BigEndian.Uint16(page[header+3:]))
	pointers, child := page[header+8:], 0
	if kind == innerIndex { // its header and each of its cells name a child page, in 4 bytes
		pointers, child = page[header+12:], 4
	}
	if 2*cells > len(pointers) {
		return nil
	}
	inIndex := kind != leafTable
	for i := range cells {
		rowid, record, ok := p.cell(page, int(binary.BigEndian.Uint16(pointers[2*i:]))+child, inIndex)
		if !ok {
			continue
		}
		if err := f(rowid, record, inIndex); err != nil {
			return err
		}
	}
	return nil
}

// cell reads the cell at an offset of a leaf page, with what overflowed. Cells of an
// index have no rowid; those that overflow are passed over.
func (p *pages) cell(page []byte, at int, inIndex bool) (rowid int64, record []byte, ok bool) {
	if at >= len(page) {
		return 0, nil, false
	}
	b := page[at:]
	length, n := varint(b)
	if n == 0 {
		return 0, nil, false
	}
	if b = b[n:]; inIndex {
		return 0, b[:min(length, uint64(len(b)))], length <= uint64(len(b))
	}
	id, m := varint(b)
	if b = b[m:]; m == 0 || length > uint64(p.count)*uint64(p.size) {
		return 0, nil, false
	}
	local := p.local(int(length))
	if local > len(b) {
		return 0, nil, false
	}
	if local == int(length) {
		return int64(id), b[:local], true
	}
	if local+4 > len(b) {
		return 0, nil, false
	}
	record = append(make([]byte, 0, length), b[:local]...)
	next := binary.BigEndian.Uint32(b[local:])
	over := make([]byte, p.size)
	for len(record) < int(length) {
		if p.read(next, over) != nil {
			return int64(id), record, true // the checksum tells
		}
		next = binary.BigEndian.Uint32(over)
		record = append(record, over[4:4+min(p.size-4, int(length)-len(record))]...)
	}
	return int64(id), record, true
}

// local is how much of a record stays in its leaf page.
func (p *pages) local(length int) int {
	usable := p.size
	if length <= usable-35 {
		return length
	}
	least := (usable-12)*32/255 - 23
	if k := least + (length-least)%(usable-4); k <= usable-35 {
		return k
	}
	return least
}

// column is one value of a record: its serial type and its bytes, as many as there
// are.
type column struct {
	kind uint64
	body []byte
}

// isBlob tells blobs from the rest.
func (c *column) isBlob() bool { return c.kind >= 12 && c.kind%2 == 0 }

// int returns the value of an integer; ok is false for anything else.
func (c *column) int() (v int64, ok bool) {
	if c.kind == 8 || c.kind == 9 {
		return int64(c.kind - 8), true
	}
	if c.kind == 0 || c.kind > 6 || uint64(len(c.body)) < columnSize(c.kind) {
		return 0, false
	}
	v = int64(int8(c.body[0]))
	for _, b := range c.body[1:] {
		v = v<<8 | int64(b)
	}
	return v, true
}

// columns splits a record; it returns nil when that does not work out. The result is
// valid until the next call with the same buffer.
func columns(record []byte, buf []column) []column {
	length, n := varint(record)
	if n == 0 || length > uint64(len(record)) || length < uint64(n) {
		return nil
	}
	types, body := record[n:length], record[length:]
	buf = buf[:0]
	for len(types) > 0 {
		kind, n := varint(types)
		if n == 0 {
			return nil
		}
		types = types[n:]
		size := min(columnSize(kind), uint64(len(body)))
		buf = append(buf, column{kind, body[:size]})
		body = body[size:]
	}
	return buf
}

// columnSize is the size of a column of that serial type.
func columnSize(kind uint64) uint64 {
	switch {
	case kind >= 12:
		return (kind - 12) / 2
	case kind == 5:
		return 6
	case kind == 6 || kind == 7:
		return 8
	case kind <= 4:
		return kind
	}
	return 0
}

// varint reads an integer of SQLite: big endian, seven bits a byte, at most nine
// bytes; n is 0 when b ends before it.
func varint(b []byte) (v uint64, n int) {
	for i := range min(len(b), 8) {
		v = v<<7 | uint64(b[i]&0x7f)
		if b[i] < 0x80 {
			return v, i + 1
		}
	}
	if len(b) < 9 {
		return 0, 0
	}
	return v<<8 | uint64(b[8]), 9
}
