package bridgetest

import (
	"log/slog"
	"sync"
	"testing"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	mochipackets "github.com/mochi-mqtt/server/v2/packets"
)

// EmbeddedBroker is an MQTT broker inside the test process, for smoke tests where no
// mosquitto is installed. Use it at low rates only: it deadlocks under QoS 1 and 2
// load, stalls at the client's Receive Maximum, resends out of order, forgets
// everything at Stop, and strips user properties from clients that did not ask for
// problem information in CONNECT. What needs a broker's word goes to [StartMosquitto].
type EmbeddedBroker struct {
	server *mochi.Server
	tcp    *listeners.TCP
	stop   sync.Once
}

// StartEmbedded starts a broker on a random port that accepts everybody; it is closed
// in the Cleanup. It ends the test when it cannot listen.
func StartEmbedded(t testing.TB) *EmbeddedBroker {
	t.Helper()
	server := mochi.New(&mochi.Options{Logger: slog.New(slog.DiscardHandler), InlineClient: false})
	if err := server.AddHook(new(allowAll), nil); err != nil {
		t.Fatalf("embedded broker: allow everybody: %v", err)
	}
	tcp := listeners.NewTCP(listeners.Config{ID: "mqtt", Address: "127.0.0.1:0"})
	if err := server.AddListener(tcp); err != nil {
		t.Fatalf("embedded broker: listen: %v", err)
	}
	if err := server.Serve(); err != nil {
		t.Fatalf("embedded broker: serve: %v", err)
	}
	b := &EmbeddedBroker{server: server, tcp: tcp}
	t.Cleanup(b.Stop)
	return b
}

// Addr returns host:port.
func (b *EmbeddedBroker) Addr() string { return b.tcp.Address() }

// URL returns the broker as a tcp:// URL.
func (b *EmbeddedBroker) URL() string { return "tcp://" + b.Addr() }

// Stop closes the broker and all its connections. It may be called again.
func (b *EmbeddedBroker) Stop() { b.stop.Do(func() { _ = b.server.Close() }) }

// allowAll accepts every client and topic: without such a hook the broker refuses all.
type allowAll struct{ mochi.HookBase }

// Provides names the two hooks.
func (*allowAll) Provides(hook byte) bool {
	return hook == mochi.OnConnectAuthenticate || hook == mochi.OnACLCheck
}

// OnConnectAuthenticate accepts.
func (*allowAll) OnConnectAuthenticate(*mochi.Client, mochipackets.Packet) bool { return true }

// OnACLCheck accepts.
func (*allowAll) OnACLCheck(*mochi.Client, string, bool) bool { return true }
