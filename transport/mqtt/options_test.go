package mqtt

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
)

func TestNewOptionsHoldTheDefaults(t *testing.T) {
	session := SessionSettings{
		KeepAlive: new(gobridge.Seconds(30)), ConnectTimeout: 30 * time.Second, ReconnectTimeout: 30 * time.Second,
		ReconcileTimeout: 30 * time.Second, ReconnectDelay: time.Second, ReconnectMaxDelay: 2 * time.Minute,
		UnmatchedGrace: new(30 * time.Second), OnQoSDowngrade: "fail", TLS: TLSSettings{MinVersion: "1.2"},
	}
	if diff := cmp.Diff(&SessionOptions{session}, NewSessionOptions()); diff != "" {
		t.Errorf("session (-want +got):\n%s", diff)
	}
	sender := SenderSettings{QoS: "1", Retain: "preserve", ThrottleRetryAfter: new(500 * time.Millisecond)}
	if diff := cmp.Diff(&SenderOptions{sender}, NewSenderOptions()); diff != "" {
		t.Errorf("sender (-want +got):\n%s", diff)
	}
}

// Every option has a name and a description: the reference is made from them.
func TestEveryOptionIsDescribed(t *testing.T) {
	var walk func(t *testing.T, typ reflect.Type)
	walk = func(t *testing.T, typ reflect.Type) {
		for f := range typ.Fields() {
			key := f.Tag.Get("yaml")
			if key == "" || key != strings.ToLower(key) || f.Tag.Get("doc") == "" {
				t.Errorf("%s.%s: yaml %q, doc %q", typ, f.Name, key, f.Tag.Get("doc"))
			}
			if f.Type.Kind() == reflect.Struct && f.Type != reflect.TypeFor[gobridge.Secret]() {
				walk(t, f.Type)
			}
		}
	}
	walk(t, reflect.TypeFor[SessionOptions]())
	walk(t, reflect.TypeFor[SenderOptions]())
}

func TestQoSRule(t *testing.T) {
	for _, tc := range []struct {
		text     string
		of1, of2 uint8
		ok       bool
	}{
		{"0", 0, 0, true},
		{"1", 1, 1, true},
		{"2", 2, 2, true},
		{"preserve", 1, 2, true},
		{"3", 1, 1, false},
		{"", 1, 1, false},
	} {
		var r QoSRule
		if err := r.UnmarshalText([]byte(tc.text)); (err == nil) != tc.ok {
			t.Errorf("%q: %v", tc.text, err)
		}
		if r.Of(1) != tc.of1 || r.Of(2) != tc.of2 {
			t.Errorf("%q: of 1 is %d, of 2 is %d", tc.text, r.Of(1), r.Of(2))
		}
	}
}

func TestRetainRule(t *testing.T) {
	for _, tc := range []struct {
		text               string
		ofPlain, ofRetains bool
		ok                 bool
	}{
		{"true", true, true, true},
		{"false", false, false, true},
		{"preserve", false, true, true},
		{"yes", false, true, false},
	} {
		var r RetainRule
		err := r.UnmarshalText([]byte(tc.text))
		if (err == nil) != tc.ok {
			t.Errorf("%q: %v", tc.text, err)
		}
		if r.Of(false) != tc.ofPlain || r.Of(true) != tc.ofRetains {
			t.Errorf("%q: of false is %v, of true is %v", tc.text, r.Of(false), r.Of(true))
		}
	}
	var r RetainRule
	if err := r.UnmarshalText([]byte("yes")); err == nil || err.Error() != `"yes" is none of [true false preserve]` {
		t.Errorf("error %v", err)
	}
}
