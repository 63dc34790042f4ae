package mqtt

import (
	"errors"
	"net"
	"testing"

	"github.com/eclipse/paho.golang/packets"
)

func testLedger() *ledger {
	return &ledger{
		up:   func(*linkConn, *packets.Connack) error { return nil },
		down: func(*packets.Disconnect) {},
	}
}

// request is a SUBSCRIBE as the library hands it over.
type request struct{ packets.Subscribe }

func (r *request) SetIdentifier(id uint16) { r.PacketID = id }
func (r *request) Type() byte              { return packets.SUBSCRIBE }

func TestLedgerGivesRequestsTheirOwnIdentifiers(t *testing.T) {
	l := testLedger()
	answers := make(chan packets.ControlPacket, 1)
	if err := l.AddToSession(t.Context(), &request{}, answers); !errors.Is(err, errNotTransmitted) {
		t.Errorf("without a connection: %v", err)
	}
	if err := l.ConAckReceived(&linkConn{}, nil, &packets.Connack{}); err != nil {
		t.Fatal(err)
	}
	seen := map[uint16]bool{}
	for range lastRequestID - firstRequestID + 1 {
		r := &request{}
		if err := l.AddToSession(t.Context(), r, make(chan packets.ControlPacket, 1)); err != nil {
			t.Fatal(err)
		}
		if r.PacketID < firstRequestID || seen[r.PacketID] {
			t.Fatalf("identifier %d", r.PacketID)
		}
		seen[r.PacketID] = true
	}
	if err := l.AddToSession(t.Context(), &request{}, answers); !errors.Is(err, errRequestIDs) {
		t.Errorf("with all identifiers in use: %v", err)
	}
}

func TestLedgerAnswersRequests(t *testing.T) {
	l := testLedger()
	if err := l.ConAckReceived(&linkConn{}, nil, &packets.Connack{}); err != nil {
		t.Fatal(err)
	}
	answered, lost := make(chan packets.ControlPacket, 1), make(chan packets.ControlPacket, 1)
	a, b := &request{}, &request{}
	if err := errors.Join(l.AddToSession(t.Context(), a, answered), l.AddToSession(t.Context(), b, lost)); err != nil {
		t.Fatal(err)
	}
	suback := packets.NewControlPacket(packets.SUBACK)
	suback.Content.(*packets.Suback).PacketID = a.PacketID
	for range 2 { // the second one is nobody's
		if err := l.PacketReceived(suback, nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-answered; got.Type != packets.SUBACK {
		t.Errorf("answer %v", got)
	}
	for range 2 { // the library says it twice after a DISCONNECT
		if err := l.ConnectionLost(nil); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-lost; got.Type != 0 {
		t.Errorf("answer of a lost connection %v", got)
	}
}

func TestLedgerTakesNoMessages(t *testing.T) {
	l := testLedger()
	if err := l.ConAckReceived(&net.TCPConn{}, nil, &packets.Connack{}); !errors.Is(err, errForeignConn) {
		t.Errorf("foreign connection: %v", err)
	}
	if err := l.PacketReceived(packets.NewControlPacket(packets.PUBLISH), nil); !errors.Is(err, errForeignPacket) {
		t.Errorf("PUBLISH: %v", err)
	}
}
