package config

import (
	"strings"
	"testing"

	"github.com/gobridge/gobridge/kinds"
)

func TestShowHidesTheQueryOfAURLAndTheResultDoesNotRun(t *testing.T) {
	const file = `bridge: { id: b }
sessions:
  - { id: a, transport: mqtt, options: { session: { broker_url: "wss://a/mqtt?token=SUPERSECRET" } } }
  - { id: b, transport: mqtt, options: { session: { broker_url: "tcp://b:1883" } } }
routes:
  - { id: r, receiver: { session_id: a, topics: [ { topic: "x/#" } ] }, bindings: [ { sender: { session_id: b }, address: "{topic}" } ] }
`
	f, diags := Load("t.yaml", []byte(file), kinds.All())
	if HasErrors(diags) || f.Redacted {
		t.Fatal(diags, f.Redacted)
	}
	shown, err := f.Show()
	if err != nil || strings.Contains(string(shown), "SUPERSECRET") || !strings.Contains(string(shown), "wss://a/mqtt?[redacted]") {
		t.Fatalf("shown %v:\n%s", err, shown)
	}
	again, diags := Load("t.yaml", shown, kinds.All())
	if HasErrors(diags) || !again.Redacted {
		t.Errorf("what was shown: %v, redacted %v; want sound and marked", diags, again.Redacted)
	}
}
