package mqtt

import (
	"fmt"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
)

// blame takes note that the broker closed c, and looks for a message that made it
// do so: such a message would cost every further connection too. Brokers answer in
// order, so the oldest open publish is the suspect; when it is the suspect twice in
// a row it is refused.
//
// With said, the broker gave the reason in a DISCONNECT. Some close without a word
// on strings that the standard lets them refuse; so a message that holds such a
// string can be a suspect without it, and no other can: a broker that just goes
// away is no fault of a message. Such a suspect needs four closes in a row, each
// right after it was transmitted.
func (o *outbound) blame(c *guardConn, cause error, said bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c != o.c {
		return
	}
	var oldest *slot
	for i := range o.slots {
		if s := &o.slots[i]; s.m != nil && s.state == slotSent && s.sentAt != 0 && (oldest == nil || s.seq < oldest.seq) {
			oldest = s
		}
	}
	if oldest == nil || !said && (!refusable(oldest.m.Envelope) || monotonic()-oldest.sentAt > int64(closedOver)) {
		o.suspect, o.strikes = "", 0
		return
	}
	if id := oldest.m.Envelope.ID; o.suspect != id {
		o.suspect, o.strikes = id, 0
	}
	o.strikes++
	if said && o.strikes < 2 || !said && o.strikes < 4 {
		return
	}
	o.suspect, o.strikes = "", 0
	o.finish(oldest.m, &gobridge.Error{
		Code: gobridge.CodeProtocolError, Class: gobridge.ClassPermanent, Op: "publish",
		Err:  fmt.Errorf("the broker closes the connection on this message: %w", cause),
		Hint: "look for control characters in its properties",
	})
	oldest.m = nil
}

// closedOver is how soon after a PUBLISH a broker closes that refuses it.
const closedOver = 2 * time.Second

// faultyPacket reports whether a DISCONNECT says that a packet of ours was at
// fault.
func faultyPacket(d *packets.Disconnect) bool {
	if d == nil {
		return false
	}
	switch d.ReasonCode {
	case packets.DisconnectMalformedPacket, packets.DisconnectProtocolError, packets.DisconnectTopicNameInvalid,
		packets.DisconnectPacketTooLarge, packets.DisconnectPayloadFormatInvalid:
		return true
	}
	return false
}

// refusable reports whether a message holds a string with characters that a
// receiver may treat as a malformed packet (MQTT v5, 1.5.4).
func refusable(e *gobridge.Envelope) bool {
	if strings.ContainsFunc(e.ContentType, unwelcome) || strings.ContainsFunc(e.ResponseTopic, unwelcome) {
		return true
	}
	for i := range e.Headers {
		if strings.ContainsFunc(e.Headers[i].Name, unwelcome) || strings.ContainsFunc(e.Headers[i].Value, unwelcome) {
			return true
		}
	}
	return strings.ContainsFunc(e.ID, unwelcome)
}

// unwelcome names control characters and Unicode noncharacters.
func unwelcome(r rune) bool {
	return r < 0x20 || r >= 0x7f && r < 0xa0 || r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe
}
