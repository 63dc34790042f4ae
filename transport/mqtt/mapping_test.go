package mqtt

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/transport/mqtt/wire"
)

var testTime = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// received encodes a PUBLISH and parses it, as if a broker had sent it.
func received(t testing.TB, p wire.Publish, user ...wire.UserProperty) *wire.Publish {
	t.Helper()
	if p.Topic == nil {
		p.Topic = []byte("t")
	}
	frame, err := wire.AppendPublish(nil, &p, user)
	if err != nil {
		t.Fatal(err)
	}
	var parsed wire.Publish
	if err := wire.ParsePublish(frame[0], wire.Body(frame), &parsed); err != nil {
		t.Fatal(err)
	}
	return &parsed
}

func prop(name, value string) wire.UserProperty { return wire.UserProperty{Name: name, Value: value} }

// Covers: S1-516
func TestFillEnvelopeTakesEveryField(t *testing.T) {
	p := received(t, wire.Publish{
		QoS: 2, PacketID: 7, Retain: true, Topic: []byte("a/b"), Payload: []byte("body"),
		HasPayloadFormat: true, PayloadFormat: 1, HasExpiry: true, Expiry: 30,
		ContentType: []byte("text/plain"), ResponseTopic: []byte("re"), Correlation: []byte{0, 1},
	}, prop("k", "1"), prop("mqtt.message-id", "m-1"), prop("j", ""), prop("k", "2"), prop("gobridge-hops", "3"))
	var e gobridge.Envelope
	if dropped := fillEnvelope(&e, p, gobridge.IdentityBoth, testTime); dropped != 0 {
		t.Errorf("%d properties dropped", dropped)
	}
	clear(p.Topic) // the envelope owns its memory
	clear(p.Payload)
	clear(p.Correlation)
	want := gobridge.Envelope{
		ID: "m-1", IDOrigin: gobridge.IDProducer, Topic: "a/b", Payload: []byte("body"),
		Headers:     []gobridge.Property{{Name: "k", Value: "1"}, {Name: "mqtt.message-id", Value: "m-1"}, {Name: "j"}, {Name: "k", Value: "2"}},
		ContentType: "text/plain", ResponseTopic: "re", CorrelationData: []byte{0, 1}, UTF8Payload: true, QoS: 2, Retain: true, Hops: 3,
		CreatedAt: testTime, ExpiresAt: testTime.Add(30 * time.Second),
	}
	if diff := cmp.Diff(want, e); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Covers: S1-315, S1-401, S1-403
func TestFillEnvelopeIdentity(t *testing.T) {
	const generated = "generated"
	id := []wire.UserProperty{prop("mqtt.message-id", "m-1")}
	for _, tt := range []struct {
		name        string
		identity    string
		correlation []byte
		user        []wire.UserProperty
		want        string
	}{
		{"message id first", gobridge.IdentityBoth, []byte("c-1"), id, "m-1"},
		{"correlation second", gobridge.IdentityBoth, []byte("c-1"), nil, "c-1"},
		{"neither", gobridge.IdentityBoth, nil, nil, generated},
		{"message id alone", gobridge.IdentityMessageID, []byte("c-1"), nil, generated},
		{"message id alone, present", gobridge.IdentityMessageID, []byte("c-1"), id, "m-1"},
		{"correlation alone", gobridge.IdentityCorrelation, nil, id, generated},
		{"correlation alone, present", gobridge.IdentityCorrelation, []byte("c-1"), id, "c-1"},
		{"empty message id", gobridge.IdentityBoth, []byte("c-1"), []wire.UserProperty{prop("mqtt.message-id", "")}, "c-1"},
		{"first message id that says something", gobridge.IdentityBoth, nil, []wire.UserProperty{prop("mqtt.message-id", ""), prop("mqtt.message-id", "x"), prop("mqtt.message-id", "y")}, "x"},
		{"name in other letters", gobridge.IdentityBoth, nil, []wire.UserProperty{prop("MQTT.Message-Id", "m")}, generated},
		{"empty correlation", gobridge.IdentityBoth, []byte{}, nil, generated},
		{"binary correlation", gobridge.IdentityBoth, []byte{0xfb, 0xff, 0xfe}, nil, "mqtt-bin:-__-"},
		{"correlation with NUL", gobridge.IdentityBoth, []byte("a\x00"), nil, "mqtt-bin:YQA"},
		{"correlation with a control character", gobridge.IdentityBoth, []byte("a\n"), nil, "mqtt-bin:YQo"},
		{"correlation with a noncharacter", gobridge.IdentityBoth, []byte("\ufffe"), nil, "mqtt-bin:77--"},
		{"correlation beyond ASCII", gobridge.IdentityBoth, []byte("ü-1"), nil, "ü-1"},
		{"correlation that looks encoded", gobridge.IdentityBoth, []byte("mqtt-bin:YQA"), nil, "mqtt-bin:bXF0dC1iaW46WVFB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := received(t, wire.Publish{Correlation: tt.correlation}, tt.user...)
			var e, again gobridge.Envelope
			fillEnvelope(&e, p, tt.identity, testTime)
			fillEnvelope(&again, p, tt.identity, testTime)
			if tt.want == generated {
				uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
				if !uuid.MatchString(e.ID) || e.ID == again.ID || e.IDOrigin != gobridge.IDGenerated {
					t.Errorf("got %q and %q of origin %d, want two version 4 UUIDs marked as generated", e.ID, again.ID, e.IDOrigin)
				}
				return
			}
			if e.ID != tt.want || again.ID != tt.want || e.IDOrigin != gobridge.IDProducer {
				t.Errorf("got %q of origin %d, want %q of the producer", e.ID, e.IDOrigin, tt.want)
			}
		})
	}
}

func TestFillEnvelopeLeavesOutNamesOfTheBridge(t *testing.T) {
	p := received(t, wire.Publish{},
		prop("mqtt.topic", "x"), prop("a", "1"), prop("mqtt.qos", "2"), prop("mqtt.retained", "true"), prop("x-bridge.route", "r"),
		prop("X-Bridge.Any", ""), prop("mqtt.topics", "kept"), prop("x-bridge", "kept"), prop("a", "2"), prop("Mqtt.topic", "kept"))
	var e gobridge.Envelope
	if dropped := fillEnvelope(&e, p, gobridge.IdentityBoth, testTime); dropped != 5 {
		t.Errorf("%d properties counted as dropped, want 5", dropped)
	}
	want := []gobridge.Property{{Name: "a", Value: "1"}, {Name: "mqtt.topics", Value: "kept"}, {Name: "x-bridge", Value: "kept"}, {Name: "a", Value: "2"}, {Name: "Mqtt.topic", Value: "kept"}}
	if diff := cmp.Diff(want, e.Headers); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if topic, _ := e.Header("mqtt.topic"); topic != "t" {
		t.Errorf("mqtt.topic is %q, want the topic of the packet", topic)
	}
}

func TestFillEnvelopeReadsHops(t *testing.T) {
	for _, tt := range []struct {
		values []string
		want   int
	}{
		{nil, 0},
		{[]string{"0"}, 0},
		{[]string{"7"}, 7},
		{[]string{"2", "5", "3"}, 5},
		{[]string{"-1"}, 0},
		{[]string{"many"}, 0},
		{[]string{""}, 0},
		{[]string{strings.Repeat("9", 100)}, maxHops},
	} {
		var user []wire.UserProperty
		for _, v := range tt.values {
			user = append(user, prop("gobridge-hops", v))
		}
		var e gobridge.Envelope
		if fillEnvelope(&e, received(t, wire.Publish{}, user...), gobridge.IdentityBoth, testTime); e.Hops != tt.want || len(e.Headers) != 0 {
			t.Errorf("%q: %d hops and %d headers, want %d and none", tt.values, e.Hops, len(e.Headers), tt.want)
		}
	}
}

func TestFillEnvelopeExpiryZeroIsExpiredAtOnce(t *testing.T) {
	var e gobridge.Envelope
	fillEnvelope(&e, received(t, wire.Publish{HasExpiry: true}), gobridge.IdentityBoth, testTime)
	if !e.Expired(testTime) {
		t.Error("a message of no lifetime is not expired")
	}
}

func TestFillPublishSendsWhatCameAndTheBridgesTwo(t *testing.T) {
	e := &gobridge.Envelope{
		ID: "m-1", Topic: "from", Subject: "s", Payload: []byte("body"), QoS: 2, Retain: true,
		Headers: []gobridge.Property{
			{Name: "a", Value: "1"},
			{Name: "mqtt.topic", Value: "x"},
			{Name: "mqtt.message-id", Value: "old"},
			{Name: "X-BRIDGE.y", Value: "x"},
			{Name: "a", Value: "2"},
			{Name: "gobridge-hops", Value: "9"},
			{Name: "mqtt.other", Value: "kept"},
		},
		ContentType: "c", ResponseTopic: "re/ply", CorrelationData: []byte{0, 0xff}, UTF8Payload: true, Hops: 1,
		ExpiresAt: testTime.Add(27 * time.Second),
	}
	var p wire.Publish
	props, err := fillPublish(&p, nil, e, "to/there", testTime)
	if err != nil {
		t.Fatal(err)
	}
	want := wire.Publish{
		Topic: []byte("to/there"), Payload: []byte("body"), HasPayloadFormat: true, PayloadFormat: 1, HasExpiry: true, Expiry: 27,
		ContentType: []byte("c"), ResponseTopic: []byte("re/ply"), Correlation: []byte{0, 0xff},
	}
	if diff := cmp.Diff(want, p, cmp.AllowUnexported(wire.Publish{})); diff != "" {
		t.Errorf("publish (-want +got):\n%s", diff)
	}
	wantProps := []wire.UserProperty{prop("a", "1"), prop("mqtt.message-id", "m-1"), prop("a", "2"), prop("mqtt.other", "kept"), prop("gobridge-hops", "2")}
	if diff := cmp.Diff(wantProps, props); diff != "" {
		t.Errorf("user properties (-want +got):\n%s", diff)
	}

	props, err = fillPublish(&p, props[:0], &gobridge.Envelope{ID: "m-2"}, "t", testTime)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wire.Publish{Topic: []byte("t")}, p, cmp.AllowUnexported(wire.Publish{})); diff != "" {
		t.Errorf("bare publish (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]wire.UserProperty{prop("gobridge-hops", "1"), prop("mqtt.message-id", "m-2")}, props); diff != "" {
		t.Errorf("bare user properties (-want +got):\n%s", diff)
	}
}

func TestFillPublishExpiryIsWhatRemains(t *testing.T) {
	for _, tt := range []struct {
		left time.Duration
		want uint32 // 0: expired
	}{
		{30 * time.Second, 30},
		{27*time.Second + 1, 28},
		{time.Second, 1},
		{time.Millisecond, 1},
		{1, 1},
		{0, 0},
		{-time.Hour, 0},
		{290 * 365 * 24 * time.Hour, 1<<32 - 1},
	} {
		var p wire.Publish
		_, err := fillPublish(&p, nil, &gobridge.Envelope{ID: "x", ExpiresAt: testTime.Add(tt.left)}, "t", testTime)
		if tt.want == 0 {
			if e := gobridge.AsError(err); err == nil || e.Class != gobridge.ClassExpired {
				t.Errorf("%v left: got %v, want an expired message", tt.left, err)
			}
			continue
		}
		if err != nil || p.Expiry != tt.want {
			t.Errorf("%v left: expiry %d, %v; want %d", tt.left, p.Expiry, err, tt.want)
		}
	}
}

func TestFillPublishLeavesItsOwnPropertiesOutOfAFullMessage(t *testing.T) {
	headers := func(n, size int) []gobridge.Property {
		return slices.Repeat([]gobridge.Property{{Name: "n", Value: strings.Repeat("v", size)}}, n)
	}
	identified := headers(128, 1)
	identified[64].Name = "mqtt.message-id"
	for _, tt := range []struct {
		name    string
		headers []gobridge.Property
		id      string
		own     []string // that must be there
		total   int
	}{
		{"room for both", headers(126, 1), "m", []string{"gobridge-hops", "mqtt.message-id"}, 128},
		{"room for one", headers(127, 1), "m", []string{"gobridge-hops"}, 128},
		{"no room", headers(128, 1), "m", nil, 128},
		{"identified already", identified, "m", []string{"mqtt.message-id"}, 128},
		{"metadata full", headers(4, MetadataAllowance/4-8), "m", nil, 4},
		{"id too long for a property", headers(1, 1), strings.Repeat("i", wire.MaxString+1), []string{"gobridge-hops"}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p wire.Publish
			props, err := fillPublish(&p, nil, &gobridge.Envelope{ID: tt.id, Headers: tt.headers}, "t", testTime)
			if err != nil {
				t.Fatal(err)
			}
			var own []string
			for _, h := range props {
				if h.Name != "n" {
					own = append(own, h.Name)
				}
			}
			if !slices.Equal(own, tt.own) || len(props) != tt.total {
				t.Errorf("got %q of %d, want %q of %d", own, len(props), tt.own, tt.total)
			}
			if parsed := received(t, p, props...); parsed.MetadataBytes > MetadataAllowance {
				t.Errorf("%d bytes of metadata", parsed.MetadataBytes)
			}
		})
	}
}

func TestFillPublishRejectsWhatNoBrokerMayBeSent(t *testing.T) {
	for _, tt := range []struct {
		name string
		e    gobridge.Envelope
		code gobridge.Code
		want string
	}{
		{"response topic with a wildcard", gobridge.Envelope{ResponseTopic: "a/+"}, gobridge.CodeInvalidTopic, "response topic"},
		{"response topic with NUL", gobridge.Envelope{ResponseTopic: "a\x00"}, gobridge.CodeInvalidTopic, "response topic"},
		{"content type not UTF-8", gobridge.Envelope{ContentType: "\xff"}, gobridge.CodeInvalidPayload, "content type"},
		{"header name not UTF-8", gobridge.Envelope{Headers: []gobridge.Property{{Name: "\xff"}}}, gobridge.CodeInvalidPayload, "user property"},
		{"header value with NUL", gobridge.Envelope{Headers: []gobridge.Property{{Name: "trace", Value: "\x00"}}}, gobridge.CodeInvalidPayload, `"trace"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.e.ID = "m"
			var p wire.Publish
			_, err := fillPublish(&p, nil, &tt.e, "t", testTime)
			var e *gobridge.Error
			if !errors.As(err, &e) || e.Code != tt.code || e.Class != gobridge.ClassRejected || e.Outage || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want a rejection %s that names %q", err, tt.code, tt.want)
			}
		})
	}
}

// drawText draws a string that MQTT may carry.
func drawText(t *rapid.T, label string) string {
	return strings.ReplaceAll(rapid.StringN(0, 20, 60).Draw(t, label), "\x00", "")
}

func TestMessagesSurviveTwoBridgesUnchanged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sent := wire.Publish{Topic: []byte("source/topic"), Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload")}
		if rapid.Bool().Draw(t, "has content type") {
			sent.ContentType = []byte(drawText(t, "content type"))
		}
		if rapid.Bool().Draw(t, "has response topic") {
			sent.ResponseTopic = []byte("re/" + strings.NewReplacer("+", "", "#", "").Replace(drawText(t, "response topic")))
		}
		if rapid.Bool().Draw(t, "has correlation") {
			sent.Correlation = rapid.SliceOfN(rapid.Byte(), 1, 50).Draw(t, "correlation")
		}
		if sent.HasExpiry = rapid.Bool().Draw(t, "has expiry"); sent.HasExpiry {
			sent.Expiry = rapid.Uint32Range(1, 1<<32-1).Draw(t, "expiry")
		}
		var user []wire.UserProperty
		for range rapid.IntRange(0, 130).Draw(t, "user properties") {
			name := rapid.OneOf(rapid.SampledFrom([]string{"a", "b", "mqtt.topic", "x-bridge.a", "mqtt.message-id"}), rapid.Custom(func(t *rapid.T) string { return drawText(t, "name") })).Draw(t, "name")
			user = append(user, prop(name, drawText(t, "value")))
		}
		var want []wire.UserProperty // what is the producer's
		identified := false
		for _, u := range user[:min(len(user), MaxUserProperties)] {
			if !bridgeOwned(u.Name) && u.Name != gobridge.PropertyHops {
				if u.Name == gobridge.PropertyMessageID {
					if !identified && u.Value == "" {
						u.Value = "?" // replaced by the id, whatever that is
					}
					identified = true
				}
				want = append(want, u)
			}
		}
		user = user[:min(len(user), MaxUserProperties)]

		var first, second gobridge.Envelope
		frame, err := wire.AppendPublish(nil, &sent, user)
		if err != nil {
			t.Fatal(err)
		}
		hop := func(e *gobridge.Envelope, frame []byte) []byte {
			var parsed, next wire.Publish
			if err := wire.ParsePublish(frame[0], wire.Body(frame), &parsed); err != nil {
				t.Fatal(err)
			}
			fillEnvelope(e, &parsed, gobridge.IdentityBoth, testTime)
			props, err := fillPublish(&next, nil, e, "destination", testTime)
			if err != nil {
				t.Fatal(err)
			}
			if len(props) > MaxUserProperties {
				t.Fatalf("%d user properties", len(props))
			}
			frame, err = wire.AppendPublish(nil, &next, props)
			if err != nil {
				t.Fatal(err)
			}
			return frame
		}
		last := hop(&second, hop(&first, frame))

		var got wire.Publish
		if err := wire.ParsePublish(last[0], wire.Body(last), &got); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Payload, sent.Payload) || !bytes.Equal(got.ContentType, sent.ContentType) ||
			!bytes.Equal(got.ResponseTopic, sent.ResponseTopic) || !bytes.Equal(got.Correlation, sent.Correlation) || got.Expiry != sent.Expiry {
			t.Fatalf("sent %+v, arrived %+v", sent, got)
		}
		if len(user) < MaxUserProperties-1 && (first.ID != second.ID || second.Hops != 1) {
			t.Fatalf("the id %q became %q, hops %d", first.ID, second.ID, second.Hops)
		}
		var arrived []wire.UserProperty
		seenID := false
		for name, value := range got.UserProps {
			u := prop(string(name), string(value))
			if u.Name == gobridge.PropertyHops || u.Name == gobridge.PropertyMessageID && !identified {
				continue
			}
			if u.Name == gobridge.PropertyMessageID && !seenID {
				seenID = true
				if u.Value != first.ID {
					t.Fatalf("mqtt.message-id %q is not the id %q", u.Value, first.ID)
				}
				for i := range want {
					if want[i].Name == gobridge.PropertyMessageID {
						want[i].Value = u.Value
						break
					}
				}
			}
			arrived = append(arrived, u)
		}
		if diff := cmp.Diff(want, arrived); diff != "" {
			t.Fatalf("user properties (-sent +arrived):\n%s", diff)
		}
	})
}

func FuzzMapping(f *testing.F) {
	p := wire.Publish{QoS: 1, PacketID: 1, Topic: []byte("t"), Payload: []byte("x"), Correlation: []byte{0}, ResponseTopic: []byte("a/+"), HasExpiry: true}
	frame, err := wire.AppendPublish(nil, &p, []wire.UserProperty{prop("mqtt.message-id", ""), prop("x-bridge.a", "1"), prop("gobridge-hops", "9")})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(frame[0], wire.Body(frame))
	f.Add(byte(0x30), []byte("\x00\x01t\x00"))
	f.Fuzz(func(t *testing.T, header byte, body []byte) {
		var p wire.Publish
		if wire.ParsePublish(header, body, &p) != nil {
			return
		}
		var e gobridge.Envelope
		dropped := fillEnvelope(&e, &p, gobridge.IdentityBoth, testTime)
		if e.ID == "" || !utf8.ValidString(e.ID) {
			t.Fatalf("id %q", e.ID)
		}
		if len(e.Headers)+dropped > p.UserKept {
			t.Fatalf("%d headers and %d dropped of %d", len(e.Headers), dropped, p.UserKept)
		}
		for _, h := range e.Headers {
			if gobridge.Reserved(h.Name) || h.Name == "mqtt.topic" || h.Name == gobridge.PropertyHops {
				t.Fatalf("header %q got in", h.Name)
			}
		}
		var out wire.Publish
		props, err := fillPublish(&out, nil, &e, "t", testTime)
		if err != nil {
			if class := gobridge.AsError(err).Class; class != gobridge.ClassRejected && class != gobridge.ClassExpired {
				t.Fatalf("class %v: %v", class, err)
			}
			return
		}
		if len(props) > wire.MaxUserKept {
			t.Fatalf("%d user properties", len(props))
		}
		frame, err := wire.AppendPublish(nil, &out, props)
		if err != nil {
			t.Fatal(err)
		}
		if err := wire.ParsePublish(frame[0], wire.Body(frame), &p); err != nil {
			t.Fatalf("what is sent is refused: %v", err)
		}
	})
}

func sampleMessage(t testing.TB) *wire.Publish {
	return received(t, wire.Publish{
		QoS: 1, PacketID: 7, Topic: []byte("site-1/line-4/temperature"), Payload: make([]byte, 256), ContentType: []byte("application/json"),
	}, prop("mqtt.message-id", "0d9a3a86"), prop("unit", "C"), prop("source", "plc-7"))
}

func TestMappingAllocatesThreeBlocks(t *testing.T) {
	bare := received(t, wire.Publish{Topic: []byte("t"), Payload: []byte("x")})
	full := sampleMessage(t)
	var e gobridge.Envelope
	var p wire.Publish
	var props []wire.UserProperty
	for name, tt := range map[string]struct {
		max float64
		f   func()
	}{
		"in, with properties":            {3, func() { fillEnvelope(&e, full, gobridge.IdentityBoth, testTime) }},
		"in, with nothing but a payload": {2, func() { fillEnvelope(&e, bare, gobridge.IdentityBoth, testTime) }},
		"out":                            {0, func() { props, _ = fillPublish(&p, props[:0], &e, "t", testTime) }},
	} {
		if n := testing.AllocsPerRun(100, tt.f); n > tt.max {
			t.Errorf("%s: %v allocations, want at most %v", name, n, tt.max)
		}
	}
}

func BenchmarkFillEnvelope(b *testing.B) {
	p := sampleMessage(b)
	b.ReportAllocs()
	for b.Loop() {
		var e gobridge.Envelope
		fillEnvelope(&e, p, gobridge.IdentityBoth, testTime)
	}
}

func BenchmarkFillPublish(b *testing.B) {
	var e gobridge.Envelope
	fillEnvelope(&e, sampleMessage(b), gobridge.IdentityBoth, testTime)
	var p wire.Publish
	var props []wire.UserProperty
	b.ReportAllocs()
	for b.Loop() {
		props, _ = fillPublish(&p, props[:0], &e, "cloud/site-1", testTime)
	}
}

func ExampleMapError() {
	e := MapError(fmt.Errorf("publish: %w", &dialError{errors.New("no route")}))
	fmt.Println(e.Code, e.Class, e.Outage)
	// Output: UNAVAILABLE transient true
}
