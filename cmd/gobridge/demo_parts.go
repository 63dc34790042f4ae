package main

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"
)

// demoBroker is an MQTT broker in this process, on a free port of the loopback.
type demoBroker struct {
	server   *mochi.Server
	listener *listeners.TCP
}

func startDemoBroker() (*demoBroker, error) {
	s := mochi.New(&mochi.Options{InlineClient: true, Logger: slog.New(slog.DiscardHandler)})
	if err := s.AddHook(new(allowAll), nil); err != nil {
		return nil, err
	}
	l := listeners.NewTCP(listeners.Config{ID: "tcp", Address: "127.0.0.1:0"})
	if err := s.AddListener(l); err != nil {
		return nil, err
	}
	if err := s.Serve(); err != nil {
		return nil, err
	}
	return &demoBroker{s, l}, nil
}

func (b *demoBroker) addr() string { return b.listener.Address() }

func (b *demoBroker) close() { _ = b.server.Close() }

func (b *demoBroker) publish(topic, payload string) error {
	return b.server.Publish(topic, []byte(payload), false, 1)
}

func (b *demoBroker) subscribe(filter string, id int, f func(payload []byte)) error {
	return b.server.Subscribe(filter, id, func(_ *mochi.Client, _ packets.Subscription, p packets.Packet) { f(p.Payload) })
}

// allowAll lets every client in: without such a hook the broker refuses all.
type allowAll struct{ mochi.HookBase }

// Provides names the two questions that the hook answers.
func (*allowAll) Provides(hook byte) bool {
	return hook == mochi.OnConnectAuthenticate || hook == mochi.OnACLCheck
}

func (*allowAll) OnConnectAuthenticate(*mochi.Client, packets.Packet) bool { return true }

func (*allowAll) OnACLCheck(*mochi.Client, string, bool) bool { return true }

// demoLink relays TCP to a broker and can be cut.
type demoLink struct {
	listener net.Listener
	target   string
	relays   sync.WaitGroup

	mu     sync.Mutex
	down   bool
	closed bool
	conns  map[net.Conn]struct{}
}

func newDemoLink(target string) (*demoLink, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &demoLink{listener: listener, target: target, conns: map[net.Conn]struct{}{}}
	l.relays.Go(l.accept)
	return l, nil
}

func (l *demoLink) addr() string { return l.listener.Addr().String() }

func (l *demoLink) accept() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return
		}
		if err := l.relay(conn); err != nil {
			conn.Close()
		}
	}
}

func (l *demoLink) relay(near net.Conn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down || l.closed {
		return errors.New("link is down")
	}
	far, err := net.Dial("tcp", l.target)
	if err != nil {
		return err
	}
	l.conns[near], l.conns[far] = struct{}{}, struct{}{}
	for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
		l.relays.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			pair[0].Close()
			pair[1].Close()
			l.mu.Lock()
			delete(l.conns, pair[0])
			delete(l.conns, pair[1])
			l.mu.Unlock()
		})
	}
	return nil
}

// cut breaks all connections and refuses new ones until heal.
func (l *demoLink) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for c := range l.conns {
		c.Close()
	}
}

func (l *demoLink) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}

func (l *demoLink) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.cut()
	l.listener.Close()
	l.relays.Wait()
}
