package gobridge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"
)

// ErrDamaged marks bytes that are not what was stored: their checksum or their
// shape is wrong.
var ErrDamaged = errors.New("damaged")

// envelopeVersion is the first byte of a stored envelope. Golden bytes in the
// tests keep every version readable.
const envelopeVersion = 1

// The bits of the second byte of a stored envelope; the QoS is in the top two.
const (
	storedProducerID = 1 << iota
	storedUTF8
	storedRetain
	storedCorrelation
	storedCreated
	storedExpires
	storedQoSShift = 6
)

// The checksum of stored envelopes is CRC-32C, which CPUs compute.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AppendEnvelope appends the stored form of e to dst. Integers are varints, text
// and bytes have their length in front:
//
//	version, flags, hops, [created], [expires] (seconds and nanoseconds each),
//	id, subject, topic, content type, response topic, number of headers, names and
//	values, [correlation data], payload, CRC-32C of all that (4 bytes, little endian)
//
// Times keep their nanoseconds and lose their zone.
func AppendEnvelope(dst []byte, e *Envelope) []byte {
	start := len(dst)
	flags := e.QoS << storedQoSShift
	set := func(bit byte, on bool) {
		if on {
			flags |= bit
		}
	}
	set(storedProducerID, e.IDOrigin == IDProducer)
	set(storedUTF8, e.UTF8Payload)
	set(storedRetain, e.Retain)
	set(storedCorrelation, e.CorrelationData != nil)
	set(storedCreated, !e.CreatedAt.IsZero())
	set(storedExpires, !e.ExpiresAt.IsZero())
	dst = append(dst, envelopeVersion, flags)
	dst = binary.AppendUvarint(dst, uint64(max(e.Hops, 0)))
	for _, t := range [...]time.Time{e.CreatedAt, e.ExpiresAt} {
		if !t.IsZero() {
			dst = binary.AppendVarint(dst, t.Unix())
			dst = binary.AppendUvarint(dst, uint64(t.Nanosecond()))
		}
	}
	for _, s := range [...]string{e.ID, e.Subject, e.Topic, e.ContentType, e.ResponseTopic} {
		dst = appendCounted(dst, s)
	}
	dst = binary.AppendUvarint(dst, uint64(len(e.Headers)))
	for i := range e.Headers {
		dst = appendCounted(dst, e.Headers[i].Name)
		dst = appendCounted(dst, e.Headers[i].Value)
	}
	if e.CorrelationData != nil {
		dst = appendCounted(dst, e.CorrelationData)
	}
	dst = appendCounted(dst, e.Payload)
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[start:], castagnoli))
}

func appendCounted[T string | []byte](dst []byte, s T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// DecodeEnvelope reads what AppendEnvelope made of one envelope; b holds it and
// nothing else. Payload and correlation data of the result share b. An error wraps
// ErrDamaged unless b is whole and of a version that this program does not know.
func DecodeEnvelope(b []byte) (Envelope, error) {
	var e Envelope
	if len(b) < 6 {
		return e, fmt.Errorf("stored envelope of %d bytes: %w", len(b), ErrDamaged)
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return e, fmt.Errorf("stored envelope: checksum: %w", ErrDamaged)
	}
	if body[0] != envelopeVersion {
		return e, fmt.Errorf("stored envelope has version %d, this program knows %d (run the newer version)", body[0], envelopeVersion)
	}
	d := storedReader{b: body, at: 2}
	flags := body[1]
	e.QoS = flags >> storedQoSShift
	if flags&storedProducerID != 0 {
		e.IDOrigin = IDProducer
	}
	e.UTF8Payload = flags&storedUTF8 != 0
	e.Retain = flags&storedRetain != 0
	hops := d.uvarint()
	d.bad = d.bad || hops > math.MaxInt32
	e.Hops = int(hops)
	if flags&storedCreated != 0 {
		e.CreatedAt = d.time()
	}
	if flags&storedExpires != 0 {
		e.ExpiresAt = d.time()
	}
	for _, s := range [...]*string{&e.ID, &e.Subject, &e.Topic, &e.ContentType, &e.ResponseTopic} {
		*s = string(d.counted())
	}
	n := d.uvarint()
	// A header takes two bytes at least.
	if d.bad = d.bad || n > uint64(len(body)-d.at)/2; !d.bad && n > 0 {
		e.Headers = make([]Property, n)
		for i := range e.Headers {
			e.Headers[i] = Property{Name: string(d.counted()), Value: string(d.counted())}
		}
	}
	if flags&storedCorrelation != 0 {
		e.CorrelationData = d.counted()
	}
	if p := d.counted(); len(p) > 0 {
		e.Payload = p
	}
	if d.bad || d.at != len(body) {
		return Envelope{}, fmt.Errorf("stored envelope: shape: %w", ErrDamaged)
	}
	return e, nil
}

// storedReader reads the parts of a stored envelope; after a bad one it yields
// nothing more.
type storedReader struct {
	b   []byte
	at  int
	bad bool
}

func (d *storedReader) uvarint() uint64 {
	v, n := binary.Uvarint(d.b[d.at:])
	if d.bad = d.bad || n <= 0; d.bad {
		return 0
	}
	d.at += n
	return v
}

func (d *storedReader) time() time.Time {
	sec, n := binary.Varint(d.b[d.at:])
	if d.bad = d.bad || n <= 0; d.bad {
		return time.Time{}
	}
	d.at += n
	nsec := d.uvarint()
	d.bad = d.bad || nsec >= 1e9
	return time.Unix(sec, int64(nsec)).UTC()
}

func (d *storedReader) counted() []byte {
	n := d.uvarint()
	if d.bad = d.bad || n > uint64(len(d.b)-d.at); d.bad {
		return nil
	}
	from := d.at
	d.at += int(n)
	return d.b[from:d.at:d.at]
}
