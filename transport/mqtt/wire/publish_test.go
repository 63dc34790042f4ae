package wire

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// str encodes a length-prefixed string.
func str(s string) string { return string(appendField(nil, s)) }

func user(name, value string) string { return "\x26" + str(name) + str(value) }

// publishBody builds a PUBLISH body with packet identifier 7 (QoS 1 and 2).
func publishBody(topic, properties, payload string) []byte {
	b := []byte(str(topic) + "\x00\x07")
	b = appendVarint(b, len(properties))
	return append(append(b, properties...), payload...)
}

func collect(p *Publish) []UserProperty {
	var out []UserProperty
	for name, value := range p.UserProps {
		out = append(out, UserProperty{string(name), string(value)})
	}
	return out
}

func TestParsePublishReadsEveryProperty(t *testing.T) {
	body := publishBody("a/b",
		"\x0b\x80\x01"+user("k", "1")+"\x01\x01"+"\x02\x00\x00\x00\x1e"+user("j", "2")+
			"\x03"+str("text/plain")+"\x0b\x05"+"\x08"+str("re/ply")+"\x09"+str("\x00\xff")+user("k", "3"),
		"payload")
	var p Publish
	if err := ParsePublish(0x3d, body, &p); err != nil {
		t.Fatal(err)
	}
	want := Publish{
		Dup: true, Retain: true, QoS: 2, PacketID: 7, Topic: []byte("a/b"), Payload: []byte("payload"),
		HasPayloadFormat: true, PayloadFormat: 1, HasExpiry: true, Expiry: 30,
		ContentType: []byte("text/plain"), ResponseTopic: []byte("re/ply"), Correlation: []byte("\x00\xff"),
		UserCount: 3, UserKept: 3, MetadataBytes: len(body) - 2 - 2 - 1 - len("payload"),
	}
	users := collect(&p)
	p.user = nil
	if diff := cmp.Diff(want, p, cmp.AllowUnexported(Publish{})); diff != "" {
		t.Errorf("publish (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]UserProperty{{"k", "1"}, {"j", "2"}, {"k", "3"}}, users); diff != "" {
		t.Errorf("user properties (-want +got):\n%s", diff)
	}
}

func TestParsePublishTellsEmptyFromAbsent(t *testing.T) {
	var p Publish
	if err := ParsePublish(0x32, publishBody("t", "\x03\x00\x00\x08\x00\x00\x09\x00\x00", ""), &p); err != nil {
		t.Fatal(err)
	}
	if p.ContentType == nil || p.ResponseTopic == nil || p.Correlation == nil {
		t.Errorf("empty properties read as absent: %+v", p)
	}
	if err := ParsePublish(0x32, publishBody("t", "", ""), &p); err != nil {
		t.Fatal(err)
	}
	if p.ContentType != nil || p.ResponseTopic != nil || p.Correlation != nil {
		t.Errorf("absent properties read as present: %+v", p)
	}
}

// Covers: S1-211, S1-213
func TestParsePublishKeepsTheFirst129UserProperties(t *testing.T) {
	var properties strings.Builder
	var want []UserProperty
	for i := range 40_000 {
		name := string(rune('a' + i%26))
		properties.WriteString(user(name, ""))
		if i < MaxUserKept {
			want = append(want, UserProperty{Name: name})
		}
	}
	properties.WriteString("\x02\x00\x00\x00\x09")
	var p Publish
	if err := ParsePublish(0x32, publishBody("t", properties.String(), ""), &p); err != nil {
		t.Fatal(err)
	}
	if p.UserCount != 40_000 || p.UserKept != 129 || p.Expiry != 9 {
		t.Errorf("got count %d, kept %d, expiry %d; want 40000, 129, 9", p.UserCount, p.UserKept, p.Expiry)
	}
	if diff := cmp.Diff(want, collect(&p)); diff != "" {
		t.Errorf("user properties (-want +got):\n%s", diff)
	}
}

func TestParsePublishRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		header byte
		body   []byte
		reason byte
		what   string
	}{
		{"QoS 3", 0x36, publishBody("t", "", ""), ReasonMalformed, "QoS 3"},
		{"DUP at QoS 0", 0x38, []byte(str("t") + "\x00"), ReasonMalformed, "DUP at QoS 0"},
		{"nothing", 0x30, nil, ReasonMalformed, "topic runs over the packet"},
		{"topic cut short", 0x30, []byte("\x00\x05abc"), ReasonMalformed, "topic runs over the packet"},
		{"topic with NUL", 0x30, []byte(str("a\x00b") + "\x00"), ReasonMalformed, "topic is not valid UTF-8"},
		{"topic not UTF-8", 0x30, []byte(str("t/\xff") + "\x00"), ReasonMalformed, "topic is not valid UTF-8"},
		{"topic with a surrogate", 0x30, []byte(str("\xed\xa0\x80") + "\x00"), ReasonMalformed, "topic is not valid UTF-8"},
		{"empty topic", 0x30, []byte("\x00\x00\x00"), ReasonProtocolError, "empty topic"},
		{"plus in the topic", 0x30, []byte(str("a/+") + "\x00"), ReasonProtocolError, "wildcard in the topic"},
		{"hash in the topic", 0x30, []byte(str("#") + "\x00"), ReasonProtocolError, "wildcard in the topic"},
		{"no packet identifier", 0x32, []byte(str("t") + "\x00"), ReasonMalformed, "no packet identifier"},
		{"packet identifier 0", 0x32, []byte(str("t") + "\x00\x00\x00"), ReasonProtocolError, "packet identifier 0"},
		{"no property length", 0x30, []byte(str("t")), ReasonMalformed, "property length"},
		{"property length not minimal", 0x30, []byte(str("t") + "\x80\x00"), ReasonMalformed, "property length"},
		{"property length of five bytes", 0x30, []byte(str("t") + "\x80\x80\x80\x80\x01"), ReasonMalformed, "property length"},
		{"properties over the packet", 0x30, []byte(str("t") + "\x05\x01\x00"), ReasonMalformed, "properties run over the packet"},
		{"property over its region", 0x32, publishBody("t", "\x02\x00\x00", "more"), ReasonMalformed, "property runs over its region"},
		{"string over its region", 0x32, publishBody("t", "\x03\x00\x09ab", "more than that"), ReasonMalformed, "property runs over its region"},
		{"user property without value", 0x32, publishBody("t", "\x26\x00\x01k", "\x00\x00"), ReasonMalformed, "property runs over its region"},
		{"payload format without value", 0x32, publishBody("t", "\x01", "x"), ReasonMalformed, "property runs over its region"},
		{"unknown property", 0x32, publishBody("t", "\x11\x00\x00\x00\x00", ""), ReasonMalformed, "unknown property"},
		{"topic alias", 0x32, publishBody("t", "\x23\x00\x01", ""), ReasonProtocolError, "topic alias, and none was allowed"},
		{"topic alias alone", 0x32, publishBody("", "\x23\x00\x01", ""), ReasonProtocolError, "topic alias, and none was allowed"},
		{"subscription identifier 0", 0x32, publishBody("t", "\x0b\x00", ""), ReasonProtocolError, "subscription identifier 0"},
		{"subscription identifier cut short", 0x32, publishBody("t", "\x0b\x80", ""), ReasonMalformed, "property runs over its region"},
		{"payload format twice", 0x32, publishBody("t", "\x01\x00\x01\x00", ""), ReasonProtocolError, "payload format twice"},
		{"expiry twice", 0x32, publishBody("t", "\x02\x00\x00\x00\x00\x02\x00\x00\x00\x00", ""), ReasonProtocolError, "message expiry twice"},
		{"content type twice", 0x32, publishBody("t", "\x03\x00\x00\x03\x00\x00", ""), ReasonProtocolError, "content type twice"},
		{"response topic twice", 0x32, publishBody("t", "\x08\x00\x00\x08\x00\x00", ""), ReasonProtocolError, "response topic twice"},
		{"correlation data twice", 0x32, publishBody("t", "\x09\x00\x00\x09\x00\x00", ""), ReasonProtocolError, "correlation data twice"},
		{"content type not UTF-8", 0x32, publishBody("t", "\x03"+str("\xc0\x80"), ""), ReasonMalformed, "content type is not valid UTF-8"},
		{"response topic with NUL", 0x32, publishBody("t", "\x08"+str("\x00"), ""), ReasonMalformed, "response topic is not valid UTF-8"},
		{"user name not UTF-8", 0x32, publishBody("t", user("\xff", ""), ""), ReasonMalformed, "user property is not valid UTF-8"},
		{"user value with NUL", 0x32, publishBody("t", user("k", "\x00"), ""), ReasonMalformed, "user property is not valid UTF-8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p Publish
			err := ParsePublish(tt.header, tt.body, &p)
			var malformed *MalformedError
			if !errors.As(err, &malformed) {
				t.Fatalf("got %v, want a *MalformedError", err)
			}
			if diff := cmp.Diff(&MalformedError{Packet: "PUBLISH", What: tt.what, Reason: tt.reason}, malformed); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAppendPublishRoundTrip(t *testing.T) {
	for _, tt := range []struct {
		name string
		p    Publish
		user []UserProperty
	}{
		{"bare QoS 0", Publish{Topic: []byte("t"), Payload: []byte{}}, nil},
		{"QoS 1 retained", Publish{QoS: 1, PacketID: 0xfffe, Retain: true, Topic: []byte("a/b/c"), Payload: []byte("x")}, nil},
		{
			"everything",
			Publish{
				QoS: 2, Dup: true, PacketID: 9, Topic: []byte("ä"), Payload: bytes.Repeat([]byte{0}, 70_000),
				HasPayloadFormat: true, PayloadFormat: 1, HasExpiry: true, Expiry: 1<<32 - 1,
				ContentType: []byte("c"), ResponseTopic: []byte("r"), Correlation: []byte{0, 1},
			},
			[]UserProperty{{"a", "1"}, {"b", ""}, {"a", "2"}},
		},
		{
			"empty properties",
			Publish{
				Topic: []byte("t"), ContentType: []byte{}, ResponseTopic: []byte{}, Correlation: []byte{},
			},
			[]UserProperty{{}},
		},
		{"long strings", Publish{Topic: bytes.Repeat([]byte("t"), MaxString)}, []UserProperty{{strings.Repeat("n", MaxString), "v"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			frame, err := AppendPublish([]byte("before"), &tt.p, tt.user)
			if err != nil {
				t.Fatal(err)
			}
			frame = frame[len("before"):]
			if size, err := PublishSize(&tt.p, tt.user); err != nil || size != len(frame) {
				t.Errorf("PublishSize = %d, %v; want %d", size, err, len(frame))
			}
			typ, total, ok, err := Header(frame)
			if typ != PUBLISH || total != len(frame) || !ok || err != nil {
				t.Errorf("Header = %d, %d, %t, %v; want %d, %d", typ, total, ok, err, PUBLISH, len(frame))
			}
			var got Publish
			if err := ParsePublish(frame[0], Body(frame), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.user, collect(&got)); diff != "" {
				t.Errorf("user properties (-want +got):\n%s", diff)
			}
			got.user, got.UserCount, got.UserKept, got.MetadataBytes = nil, 0, 0, 0
			if tt.p.Payload == nil {
				got.Payload = nil
			}
			if diff := cmp.Diff(tt.p, got, cmp.AllowUnexported(Publish{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAppendPublishRefusesWhatTheProtocolCannotExpress(t *testing.T) {
	long := bytes.Repeat([]byte("x"), MaxString+1)
	for _, tt := range []struct {
		field string
		p     Publish
		user  []UserProperty
		size  int
	}{
		{"topic", Publish{Topic: long}, nil, len(long)},
		{"content type", Publish{ContentType: long}, nil, len(long)},
		{"response topic", Publish{ResponseTopic: long}, nil, len(long)},
		{"correlation data", Publish{Correlation: long}, nil, len(long)},
		{"user property", Publish{}, []UserProperty{{"k", "v"}, {string(long), ""}}, len(long)},
		{"user property", Publish{}, []UserProperty{{"", string(long)}}, len(long)},
	} {
		t.Run(tt.field, func(t *testing.T) {
			dst, err := AppendPublish([]byte("before"), &tt.p, tt.user)
			var limit *LimitError
			if !errors.As(err, &limit) {
				t.Fatalf("got %v, want a *LimitError", err)
			}
			if diff := cmp.Diff(&LimitError{Field: tt.field, Size: tt.size, Max: MaxString}, limit); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if string(dst) != "before" {
				t.Errorf("dst was changed to %d bytes", len(dst))
			}
		})
	}
	user := make([]UserProperty, MaxRemaining/(2*MaxString)+1)
	for i := range user {
		user[i] = UserProperty{string(long[1:]), string(long[1:])}
	}
	if _, err := PublishSize(&Publish{Topic: []byte("t")}, user); err == nil {
		t.Errorf("a packet over %d bytes was accepted", MaxRemaining)
	}
}

func TestSetDupMarksARetransmission(t *testing.T) {
	frame, err := AppendPublish(nil, &Publish{QoS: 1, PacketID: 1, Topic: []byte("t")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	SetDup(frame)
	var p Publish
	if err := ParsePublish(frame[0], Body(frame), &p); err != nil || !p.Dup || p.QoS != 1 {
		t.Errorf("got DUP %t, QoS %d, %v", p.Dup, p.QoS, err)
	}
}
