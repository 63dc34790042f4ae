package bridgetest

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestReadPacketAgreesWithTheLibrary(t *testing.T) {
	props := &packets.Properties{User: []packets.User{{Key: "k", Value: "v"}}}
	for _, p := range []packets.Packet{
		&packets.Connect{ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: "c", CleanStart: true, Properties: props},
		&packets.Connack{SessionPresent: true, ReasonCode: 0x80, Properties: props},
		&packets.Publish{Topic: "t", QoS: 2, PacketID: 9, Duplicate: true, Retain: true, Payload: make([]byte, 300), Properties: props},
		&packets.Publish{Topic: "t", Payload: []byte{}},
		&packets.Puback{PacketID: 1, ReasonCode: 0x97},
		&packets.Pubrec{PacketID: 2}, &packets.Pubrel{PacketID: 3}, &packets.Pubcomp{PacketID: 4, ReasonCode: 0x92},
		&packets.Subscribe{PacketID: 5, Subscriptions: []packets.SubOptions{{Topic: "a/#", QoS: 1, NoLocal: true}}},
		&packets.Suback{PacketID: 5, Reasons: []byte{1, 0x87}},
		&packets.Pingreq{},
		&packets.Disconnect{ReasonCode: 0x8E, Properties: props},
	} {
		var wire bytes.Buffer
		if _, err := p.WriteTo(&wire); err != nil {
			t.Fatal(err)
		}
		got, err := readPacket(bufio.NewReader(bytes.NewReader(wire.Bytes())))
		if err != nil {
			t.Errorf("%T: %v", p, err)
			continue
		}
		want, err := packets.ReadPacket(&wire)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(packets.FixedHeader{})); diff != "" {
			t.Errorf("%T (-want +got):\n%s", p, diff)
		}
	}
}

func TestReadPacketEdges(t *testing.T) {
	tests := []struct {
		name string
		wire []byte
		want byte // packet type, 0 for an error
	}{
		{"empty DISCONNECT", []byte{0xE0, 0}, packets.DISCONNECT},
		{"empty AUTH", []byte{0xF0, 0}, packets.AUTH},
		{"reserved type 0", []byte{0x00, 0}, 0},
		{"remaining length of five bytes", []byte{0x30, 0x80, 0x80, 0x80, 0x80, 0x01}, 0},
		{"truncated body", []byte{0x40, 2, 0}, 0},
		{"PUBACK without an id", []byte{0x40, 0}, 0},
		{"nothing", nil, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := readPacket(bufio.NewReader(bytes.NewReader(tt.wire)))
			switch {
			case tt.want == 0 && err == nil:
				t.Errorf("got %s, want an error", p.PacketType())
			case tt.want != 0 && (err != nil || p.Type != tt.want):
				t.Errorf("got %v, %v", p, err)
			}
		})
	}
}
