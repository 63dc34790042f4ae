package wire

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"
)

// frameOf puts a fixed header before a body.
func frameOf(header byte, body []byte) []byte {
	return append(appendVarint([]byte{header}, len(body)), body...)
}

// laxer are the faults for which this codec refuses a PUBLISH that the library's
// codec takes: the library does not validate what it decodes. A fault that is
// not listed must be an error of both.
var laxer = []string{
	"QoS 3", "DUP at QoS 0", "packet identifier 0", // flags and identifiers are taken as they come
	"topic is not valid UTF-8", "content type is not valid UTF-8", "response topic is not valid UTF-8", "user property is not valid UTF-8",
	"empty topic", "wildcard in the topic",
	"property length",                // forms that are not minimal, lengths of five bytes and more
	"properties run over the packet", // cut to what is there
	"property runs over its region",  // a subscription identifier may end in the middle
	"payload format twice", "message expiry twice", "content type twice", "response topic twice", "correlation data twice",
	"subscription identifier 0", "topic alias, and none was allowed",
}

// laxerAck is the same for the acknowledgements. The library also reads a PUBREC,
// PUBREL or PUBCOMP with the property rules of a PUBACK, which are the same.
var laxerAck = []string{
	"reserved flags", "packet identifier 0", "property length", "properties do not fill the packet",
	"reason string twice", "property is not valid UTF-8",
}

func FuzzParsePublish(f *testing.F) {
	everything, err := AppendPublish(nil, &sample, sampleUser)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(everything[0], Body(everything))
	f.Add(byte(0x30), []byte(str("t")+"\x00payload"))
	f.Add(byte(0x3b), publishBody("a/b", "\x0b\x80\x01"+user("k", "1")+"\x0b\x07"+user("k", "2")+"\x01\x01\x02\x00\x00\x00\x01", ""))
	f.Add(byte(0x3c), publishBody("ä", "\x03\x00\x00\x08\x00\x00\x09\x00\x00", "x"))
	f.Add(byte(0x32), publishBody("t", "\x23\x00\x01", ""))
	f.Add(byte(0x32), publishBody("t", string(bytes.Repeat([]byte("\x26\x00\x00\x00\x00"), 200)), ""))
	f.Add(byte(0x36), publishBody("a/+", "\x01\x00\x01\x00", ""))
	f.Add(byte(0x38), []byte("\x00\x01\xff\x80\x80\x80\x80\x01"))
	f.Fuzz(func(t *testing.T, header byte, body []byte) {
		header = PUBLISH<<4 | header&0x0f
		var p Publish
		err := ParsePublish(header, body, &p)
		oracle, oracleErr := packets.ReadPacket(bytes.NewReader(frameOf(header, body)))
		if err != nil {
			var malformed *MalformedError
			if !errors.As(err, &malformed) {
				t.Fatalf("got %T, want a *MalformedError", err)
			}
			if oracleErr == nil && !slices.Contains(laxer, malformed.What) {
				t.Fatalf("the library takes what we refuse: %v", err)
			}
			return
		}
		if oracleErr != nil {
			t.Fatalf("we take what the library refuses: %v", oracleErr)
		}
		comparePublish(t, &p, collect(&p), oracle.Content.(*packets.Publish))

		if p.UserCount > p.UserKept {
			return // cut, so it cannot come out the same
		}
		user := collect(&p)
		frame, err := AppendPublish(nil, &p, user)
		if err != nil {
			t.Fatal(err)
		}
		if size, err := PublishSize(&p, user); size != len(frame) || err != nil {
			t.Fatalf("PublishSize = %d, %v; want %d", size, err, len(frame))
		}
		again, err := packets.ReadPacket(bytes.NewReader(frame))
		if err != nil {
			t.Fatalf("the library refuses what we encode: %v", err)
		}
		comparePublish(t, &p, user, again.Content.(*packets.Publish))
		var reparsed Publish
		if err := ParsePublish(frame[0], Body(frame), &reparsed); err != nil {
			t.Fatalf("we refuse what we encode: %v", err)
		}
	})
}

// comparePublish fails the test unless both decoded the same message. The library
// does not tell an empty property from an absent one.
func comparePublish(t *testing.T, p *Publish, user []UserProperty, oracle *packets.Publish) {
	t.Helper()
	type message struct {
		Dup, Retain                                bool
		QoS                                        byte
		ID                                         uint16
		Topic, Payload, ContentType, ResponseTopic string
		Correlation                                string
		Format                                     *byte
		Expiry                                     *uint32
		User                                       []UserProperty
	}
	got := message{
		p.Dup, p.Retain, p.QoS, p.PacketID, string(p.Topic), string(p.Payload), string(p.ContentType), string(p.ResponseTopic),
		string(p.Correlation), nil, nil, user,
	}
	if p.HasPayloadFormat {
		got.Format = &p.PayloadFormat
	}
	if p.HasExpiry {
		got.Expiry = &p.Expiry
	}
	o := oracle.Properties
	want := message{
		oracle.Duplicate, oracle.Retain, oracle.QoS, oracle.PacketID, oracle.Topic, string(oracle.Payload), o.ContentType, o.ResponseTopic,
		string(o.CorrelationData), o.PayloadFormat, o.MessageExpiry, nil,
	}
	for i, u := range o.User {
		if i < MaxUserKept {
			want.User = append(want.User, UserProperty{u.Key, u.Value})
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("(-library +ours):\n%s", diff)
	}
	if p.UserCount != len(o.User) {
		t.Fatalf("user properties: counted %d, the library has %d", p.UserCount, len(o.User))
	}
}

func FuzzParseAck(f *testing.F) {
	f.Add(PUBACK<<4, []byte("\x00\x01"))
	f.Add(PUBREC<<4, []byte("\x00\x01\x97"))
	f.Add(PUBREL<<4|2, []byte("\xff\xff\x92\x00"))
	f.Add(PUBCOMP<<4, []byte("\x00\x01\x80\x0d\x1f\x00\x02no\x26\x00\x01k\x00\x01v"))
	f.Add(PUBACK<<4|1, []byte("\x00\x00\x00\x80\x00"))
	f.Fuzz(func(t *testing.T, header byte, body []byte) {
		var a Ack
		err := ParseAck(header, body, &a)
		if typ := header >> 4; typ < PUBACK || typ > PUBCOMP {
			if err == nil {
				t.Fatalf("type %d taken as an acknowledgement", typ)
			}
			return
		}
		oracle, oracleErr := packets.ReadPacket(bytes.NewReader(frameOf(header, body)))
		if err != nil {
			var malformed *MalformedError
			if !errors.As(err, &malformed) {
				t.Fatalf("got %T, want a *MalformedError", err)
			}
			if oracleErr == nil && !slices.Contains(laxerAck, malformed.What) {
				t.Fatalf("the library takes what we refuse: %v", err)
			}
			return
		}
		if oracleErr != nil {
			t.Fatalf("we take what the library refuses: %v", oracleErr)
		}
		compareAck(t, a, oracle)
		again, err := packets.ReadPacket(bytes.NewReader(AppendAck(nil, a.Type, a.ID, a.Reason)))
		if err != nil {
			t.Fatalf("the library refuses what we encode: %v", err)
		}
		a.ReasonString = nil
		compareAck(t, a, again)
	})
}

func compareAck(t *testing.T, a Ack, oracle *packets.ControlPacket) {
	t.Helper()
	var reason byte
	var properties *packets.Properties
	switch o := oracle.Content.(type) {
	case *packets.Puback:
		reason, properties = o.ReasonCode, o.Properties
	case *packets.Pubrec:
		reason, properties = o.ReasonCode, o.Properties
	case *packets.Pubrel:
		reason, properties = o.ReasonCode, o.Properties
	case *packets.Pubcomp:
		reason, properties = o.ReasonCode, o.Properties
	}
	want := Ack{Type: oracle.Type, ID: oracle.PacketID(), Reason: reason}
	if properties.ReasonString != "" {
		want.ReasonString = []byte(properties.ReasonString)
	}
	if len(a.ReasonString) == 0 {
		a.ReasonString = nil
	}
	if diff := cmp.Diff(want, a); diff != "" {
		t.Fatalf("(-library +ours):\n%s", diff)
	}
}

// FuzzHeader holds the framing of arbitrary bytes against its inverse.
func FuzzHeader(f *testing.F) {
	f.Add([]byte("\x30\x80\x01"))
	f.Add([]byte("\x30\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, buf []byte) {
		_, total, ok, err := Header(buf)
		if ok && err != nil || len(buf) >= 5 && !ok && err == nil {
			t.Fatalf("five bytes decide, one way: ok %t, %v", ok, err)
		}
		if ok && total <= len(buf) {
			frame := buf[:total]
			if again := frameOf(frame[0], Body(frame)); !bytes.Equal(again, frame) {
				t.Fatalf("reframed %x as %x", frame, again)
			}
		}
	})
}
