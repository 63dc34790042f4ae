package mqtt

import (
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
)

// mosquitto closes the connection on a control character in a user property. The
// message must not cost every further connection: it is refused, the others go on.
func TestMessageThatTheBrokerClosesOnIsRefusedOnMosquitto(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{gobridge.ModePersistent, gobridge.ModeEphemeral} {
		t.Run(mode, func(t *testing.T) {
			broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
			use := func(id string) *gobridge.SessionUse {
				return testUse(broker.URL(), mode, nil, func(s *SessionSettings, _ *SenderSettings) { s.ClientID = id })
			}
			r := startSession(t, use("sender-"+mode))
			r.awaitAvailable(t)
			o := newOutcomes()
			bad := &gobridge.Outbound{
				Envelope:   &gobridge.Envelope{ID: "bad", Payload: []byte("bad"), QoS: 1, Headers: []gobridge.Property{{Name: "k", Value: "a\x01b"}}},
				Address:    "out/topic",
				Completion: o,
			}
			// The route hands a message over again after an outage, as the engine does.
			deadline := time.Now().Add(testWait)
			for tries := 1; ; tries++ {
				if time.Now().After(deadline) {
					t.Fatalf("not refused after %d tries", tries)
				}
				r.awaitAvailable(t)
				if err := r.Sender("out").Send(bad); err != nil {
					time.Sleep(time.Millisecond)
					continue
				}
				r.send(t, o, 1, "good")
				r.Sender("out").Flush()
				o.wait(t, 2)
				if e := gobridge.AsError(o.err("bad")); e.Code == gobridge.CodeProtocolError && e.Class == gobridge.ClassPermanent {
					break
				}
				o = newOutcomes()
				bad.Completion = o
			}
		})
	}
}

// A new process that resumes a session does not know which QoS 2 identifiers the
// old one left in the broker: it releases all that can be, and publishes nothing
// before the last answer.
func TestQoS2IdentifiersOfAnEarlierProcessAreReleasedFirst(t *testing.T) {
	fb := bridgetest.NewFakeBroker(t)
	r := startSession(t, testUse(fb.URL(), gobridge.ModePersistent, nil, preserveQoS))
	t.Cleanup(fb.CutAll)
	c := fb.Accept()
	c.Handshake(present())
	for id := uint16(1); id <= maxOpen; id++ {
		if rel := c.Expect(packets.PUBREL).Content.(*packets.Pubrel); rel.PacketID != id {
			t.Fatalf("PUBREL for %d, want %d", rel.PacketID, id)
		}
		if id < maxOpen {
			c.Send(&packets.Pubcomp{PacketID: id, ReasonCode: 0x92})
		}
	}
	if err := r.Sender("out").Available(); err == nil {
		t.Fatal("available before the last identifier was released")
	}
	c.Send(&packets.Pubcomp{PacketID: maxOpen, ReasonCode: 0x92})
	r.awaitAvailable(t)
	o := newOutcomes()
	r.send(t, o, 2, "two")
	c.ExpectPublish()

	// The same process knows its own identifiers: a reconnect releases nothing.
	fb.CutAll()
	c = fb.Accept()
	c.Handshake(present())
	if p := c.ExpectPublish(); !p.Duplicate || string(p.Payload) != "two" {
		t.Errorf("after the reconnect came %s, want the open publish again", p)
	}
}
