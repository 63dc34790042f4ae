package memory_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/transport/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	hub := memory.NewHub()
	bridgetest.RunTransport(t, bridgetest.TransportHarness{
		Transport: memory.Transport(hub),
		Session:   func(string) any { return &memory.SessionOptions{} },
		Publish: func(_ testing.TB, topic string, payload []byte) {
			hub.Publish(memory.Message{Topic: topic, Payload: payload, QoS: 1})
		},
		Watch: func(testing.TB, string) {},
		Received: func(_ context.Context, _ testing.TB, topic string, _ int) []string {
			var all []string
			for _, m := range hub.Sent() {
				if m.Topic == topic {
					all = append(all, string(m.Payload))
				}
			}
			return all
		},
		InvalidAddress: "a/+/b",
	})
}
