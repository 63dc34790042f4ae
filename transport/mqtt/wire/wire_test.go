package wire

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHeaderFramesOnlyWholeHeaders(t *testing.T) {
	for _, tt := range []struct {
		in    string
		typ   byte
		total int
		ok    bool
		bad   bool
	}{
		{"", 0, 0, false, false},
		{"\x40", PUBACK, 0, false, false},
		{"\x40\x02", PUBACK, 4, true, false},
		{"\xd0\x00", PINGRESP, 2, true, false},
		{"\x30\x7f", PUBLISH, 129, true, false},
		{"\x30\x80", PUBLISH, 0, false, false},
		{"\x30\x80\x01", PUBLISH, 131, true, false},
		{"\x30\xff\xff\xff", PUBLISH, 0, false, false},
		{"\x30\xff\xff\xff\x7f", PUBLISH, 5 + MaxRemaining, true, false},
		{"\x30\xff\xff\xff\xff", PUBLISH, 0, false, true},
		{"\x30\x80\x00", PUBLISH, 0, false, true},
	} {
		typ, total, ok, err := Header([]byte(tt.in))
		if typ != tt.typ || total != tt.total || ok != tt.ok || (err != nil) != tt.bad {
			t.Errorf("Header(%x) = %d, %d, %t, %v", tt.in, typ, total, ok, err)
		}
	}
}

func TestVarintRoundTrip(t *testing.T) {
	for _, v := range []int{0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, MaxRemaining} {
		b := appendVarint(nil, v)
		if got, n := varint(b); got != v || n != len(b) || n != varintSize(v) {
			t.Errorf("varint(%x) = %d, %d; want %d, %d", b, got, n, v, varintSize(v))
		}
		if _, n := varint(b[:len(b)-1]); n != 0 {
			t.Errorf("varint(%x) = length %d, want 0: it is cut short", b[:len(b)-1], n)
		}
	}
}

func TestAppendDisconnect(t *testing.T) {
	if got := fmt.Sprintf("%x", AppendDisconnect(nil, 0)); got != "e000" {
		t.Errorf("got %s, want e000", got)
	}
	if got := fmt.Sprintf("%x", AppendDisconnect(nil, ReasonPacketTooLarge)); got != "e00195" {
		t.Errorf("got %s, want e00195", got)
	}
	if got := fmt.Sprintf("%x", AppendDisconnectEnding(nil)); got != "e00700051100000000" {
		t.Errorf("got %s, want a session expiry interval of 0", got)
	}
}

func TestErrorsSayWhatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want string
	}{
		{&MalformedError{Packet: "PUBLISH", What: "QoS 3", Reason: 0x81}, "malformed PUBLISH: QoS 3 (reason 0x81)"},
		{&MalformedError{Packet: "PUBACK", What: "packet identifier 0", Reason: 0x82, Dump: "40020000"}, "protocol error in PUBACK: packet identifier 0 (reason 0x82, bytes 40020000)"},
		{&LimitError{Field: "topic", Size: 70_000, Max: MaxString}, "topic of 70000 bytes is over the protocol's limit of 65535"},
	} {
		if !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("got %q, want it to hold %q", tt.err, tt.want)
		}
	}
}

var sample = Publish{
	QoS: 1, PacketID: 7, Topic: []byte("site-1/line-4/temperature"), Payload: make([]byte, 256),
	ContentType: []byte("application/json"), HasExpiry: true, Expiry: 60, Correlation: []byte("0123456789abcdef"),
}

var sampleUser = []UserProperty{{"mqtt.message-id", "2f1c9a"}, {"unit", "C"}, {"unit", "K"}}

// Covers: S1-213
func TestCodecDoesNotAllocate(t *testing.T) {
	frame, err := AppendPublish(nil, &sample, sampleUser)
	if err != nil {
		t.Fatal(err)
	}
	ack := AppendAck(nil, PUBREC, 9, 0x97)
	buf := make([]byte, 0, 2*len(frame))
	var p Publish
	var a Ack
	var seen int
	for name, f := range map[string]func(){
		"ParsePublish": func() { _ = ParsePublish(frame[0], Body(frame), &p) },
		"UserProps": func() {
			for name, value := range p.UserProps {
				seen += len(name) + len(value)
			}
		},
		"PublishSize":   func() { seen, _ = PublishSize(&sample, sampleUser) },
		"AppendPublish": func() { buf, _ = AppendPublish(buf[:0], &sample, sampleUser) },
		"ParseAck":      func() { _ = ParseAck(ack[0], Body(ack), &a) },
		"AppendAck":     func() { buf = AppendAck(buf[:0], PUBACK, 9, 0) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

func BenchmarkParsePublish(b *testing.B) {
	frame, err := AppendPublish(nil, &sample, sampleUser)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.SetBytes(int64(len(frame)))
	var p Publish
	for b.Loop() {
		if err := ParsePublish(frame[0], Body(frame), &p); err != nil {
			b.Fatal(err)
		}
		for range p.UserProps {
		}
	}
}

func BenchmarkAppendPublish(b *testing.B) {
	b.ReportAllocs()
	var buf []byte
	for b.Loop() {
		buf, _ = AppendPublish(buf[:0], &sample, sampleUser)
	}
	b.SetBytes(int64(len(buf)))
}

func BenchmarkAck(b *testing.B) {
	b.ReportAllocs()
	var buf []byte
	var a Ack
	for b.Loop() {
		buf = AppendAck(buf[:0], PUBACK, 9, 0)
		if err := ParseAck(buf[0], Body(buf), &a); err != nil {
			b.Fatal(err)
		}
	}
}
