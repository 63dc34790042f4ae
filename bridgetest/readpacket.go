package bridgetest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/eclipse/paho.golang/packets"
)

// maxRemainingLength is the largest Remaining Length (MQTT v5 section 1.5.5).
const maxRemainingLength = 268_435_455

// readPacket reads one packet. It frames packets itself, without the copies of
// packets.ReadPacket, and leaves decoding to the library, except for the empty body of a
// DISCONNECT or AUTH with reason code 0 (MQTT v5 section 3.14.2.1), which the library
// takes for a truncated one.
func readPacket(r *bufio.Reader) (*packets.ControlPacket, error) {
	first, err := r.ReadByte()
	if err != nil {
		return nil, err
	}
	length, err := binary.ReadUvarint(r) // the same encoding as a Variable Byte Integer
	if err != nil {
		return nil, err
	}
	p := packets.NewControlPacket(first >> 4)
	if p == nil || length > maxRemainingLength {
		return nil, fmt.Errorf("malformed packet: first byte 0x%02X, remaining length %d", first, length)
	}
	p.Flags = first & 0x0F
	if pub, ok := p.Content.(*packets.Publish); ok {
		pub.QoS, pub.Duplicate, pub.Retain = p.Flags>>1&3, p.Flags&8 != 0, p.Flags&1 != 0
	}
	if length == 0 && (p.Type == packets.DISCONNECT || p.Type == packets.AUTH) {
		return p, nil
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, err
	}
	if err := p.Content.Unpack(bytes.NewBuffer(body)); err != nil {
		return nil, fmt.Errorf("decode %s: %w", p.PacketType(), err)
	}
	return p, nil
}
