package mqtt

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge/bridgetest"
)

// Covers: S1-110
func TestTransportConformsOnMosquitto(t *testing.T) {
	t.Parallel()
	broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
	bridgetest.RunTransport(t, harness(t, broker.URL(), broker.Addr()))
}

// harness drives the conformance suite against one broker, with one client of its
// own.
func harness(t *testing.T, url, addr string) bridgetest.TransportHarness {
	t.Helper()
	client := bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: addr, ClientID: "harness"})
	var mu sync.Mutex
	got := map[string][]string{}
	changed := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			m, err := client.Receive(ctx)
			if err != nil {
				return
			}
			mu.Lock()
			got[m.Topic] = append(got[m.Topic], string(m.Payload))
			mu.Unlock()
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	})
	t.Cleanup(func() { cancel(); reading.Wait() })
	return bridgetest.TransportHarness{
		Transport: Transport(),
		Session: func(id string) any {
			o := NewSessionOptions()
			o.Session.BrokerURL = url
			o.Session.ClientID = id
			o.Session.ReconnectDelay = 50 * time.Millisecond
			return o
		},
		Publish: func(t testing.TB, topic string, payload []byte) {
			if _, err := client.Publish(t.Context(), &packets.Publish{Topic: topic, Payload: payload, QoS: 1}); err != nil {
				t.Errorf("publish: %v", err)
			}
		},
		Watch: func(t testing.TB, topic string) {
			if _, err := client.Subscribe(t.Context(), packets.SubOptions{Topic: topic, QoS: 1}); err != nil {
				t.Errorf("subscribe: %v", err)
			}
		},
		Received: func(ctx context.Context, _ testing.TB, topic string, n int) []string {
			for {
				mu.Lock()
				all := append([]string{}, got[topic]...)
				mu.Unlock()
				if len(all) >= n {
					return all
				}
				select {
				case <-changed:
				case <-ctx.Done():
					return all
				}
			}
		},
		InvalidAddress: "a/#",
	}
}
