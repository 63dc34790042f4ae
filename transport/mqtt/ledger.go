package mqtt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho/log"
	pahosession "github.com/eclipse/paho.golang/paho/session"
)

// The packet identifiers of what the library sends itself (SUBSCRIBE,
// UNSUBSCRIBE). Publishes have 1 to maxOpen.
const (
	firstRequestID = 65_000
	lastRequestID  = 65_535
)

var (
	errRequestIDs     = errors.New("no packet identifier is free for a SUBSCRIBE")
	errForeignPacket  = errors.New("the session ledger takes SUBSCRIBE and UNSUBSCRIBE alone")
	errForeignConn    = errors.New("the connection is not one of this session")
	errNotTransmitted = errors.New("not connected")
)

// ledger is the session state as the library sees it. The messages are kept from
// the library: the guard connection hands them to outbound and inbound. What is
// left are the identifiers of the library's own requests, and the two moments at
// which a connection begins and ends.
type ledger struct {
	// up is called with each accepted connection before anything is read from it,
	// down when it is gone (more than once for one connection). d is the DISCONNECT
	// of the server, nil without one.
	up   func(c *linkConn, ca *packets.Connack) error
	down func(d *packets.Disconnect)

	mu        sync.Mutex
	connected bool
	next      uint16
	waiting   map[uint16]chan<- packets.ControlPacket
}

var _ pahosession.SessionManager = (*ledger)(nil)

// ConAckReceived is called by the library with the accepted connection.
func (l *ledger) ConAckReceived(w io.Writer, _ *packets.Connect, ca *packets.Connack) error {
	c, ok := w.(*linkConn)
	if !ok {
		return errForeignConn
	}
	l.mu.Lock()
	l.connected = true
	l.mu.Unlock()
	return l.up(c, ca)
}

// ConnectionLost is called by the library, once or more, when the connection has
// gone. Requests without an answer end with an empty packet.
func (l *ledger) ConnectionLost(d *packets.Disconnect) error {
	l.mu.Lock()
	l.connected = false
	for id, resp := range l.waiting {
		resp <- packets.ControlPacket{} // it has room for one
		delete(l.waiting, id)
	}
	l.mu.Unlock()
	l.down(d)
	return nil
}

// AddToSession gives a request its packet identifier. resp gets its answer.
func (l *ledger) AddToSession(_ context.Context, p pahosession.Packet, resp chan<- packets.ControlPacket) error {
	if t := p.Type(); t != packets.SUBSCRIBE && t != packets.UNSUBSCRIBE {
		return errForeignPacket
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.connected {
		return errNotTransmitted
	}
	if l.waiting == nil {
		l.waiting = map[uint16]chan<- packets.ControlPacket{}
	}
	for range lastRequestID - firstRequestID + 1 {
		id := firstRequestID + l.next
		l.next = (l.next + 1) % (lastRequestID - firstRequestID + 1)
		if _, taken := l.waiting[id]; !taken {
			l.waiting[id] = resp
			p.SetIdentifier(id)
			return nil
		}
	}
	return errRequestIDs
}

// PacketReceived takes the answer to a request.
func (l *ledger) PacketReceived(p *packets.ControlPacket, _ chan<- *packets.Publish) error {
	if p.Type != packets.SUBACK && p.Type != packets.UNSUBACK {
		return fmt.Errorf("%s in the session ledger: %w", p.PacketType(), errForeignPacket)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	resp, ok := l.waiting[p.PacketID()]
	if !ok {
		return nil // the request gave up waiting on an earlier connection
	}
	delete(l.waiting, p.PacketID())
	resp <- *p
	return nil
}

// Ack, Close and the loggers are part of session.SessionManager. The library has
// no message to acknowledge, and the session outlives its clients.
func (l *ledger) Ack(*packets.Publish) error { return nil }
func (l *ledger) Close() error               { return nil }
func (l *ledger) SetErrorLogger(log.Logger)  {}
func (l *ledger) SetDebugLogger(log.Logger)  {}
