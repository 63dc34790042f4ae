package engine_test

import (
	"context"
	"fmt"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/engine"
	storemem "github.com/gobridge/gobridge/store/memory"
	"github.com/gobridge/gobridge/transport/memory"
)

// A program that embeds the bridge describes it in Go and runs it until its
// context ends. Here a hub in the process stands in for the brokers;
// examples/embed does it with MQTT.
func Example() {
	hub := memory.NewHub()
	spec := &gobridge.Spec{
		Bridge: gobridge.BridgeSpec{ID: "example"},
		Stores: gobridge.StoresSpec{DLQ: gobridge.StoreSpec{Type: "memory"}, ReplayLedger: gobridge.StoreSpec{Type: "memory"}},
		Sessions: []gobridge.SessionSpec{
			{ID: "edge", Transport: "memory", Options: &memory.SessionOptions{}},
			{ID: "cloud", Transport: "memory", Options: &memory.SessionOptions{}},
		},
		Routes: []gobridge.RouteSpec{{
			ID:       "up",
			Receiver: &gobridge.ReceiverSpec{SessionID: "edge", Topics: []gobridge.TopicSpec{{Topic: "sensors/#"}}, Options: &memory.ReceiverOptions{}},
			Bindings: []gobridge.BindingSpec{{
				Sender:  &gobridge.SenderSpec{SessionID: "cloud", Options: &memory.SenderOptions{}},
				Address: "plant-7/{topic}",
			}},
		}},
	}
	bridge, err := engine.New(spec, engine.Options{Kinds: &gobridge.Kinds{
		Transports: []*gobridge.Transport{memory.Transport(hub)},
		DLQs:       []*gobridge.DLQKind{storemem.DLQKind()},
		Ledgers:    []*gobridge.LedgerKind{storemem.LedgerKind()},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}

	ctx, stop := context.WithCancel(context.Background())
	hub.OnSent(func(m memory.Message) {
		fmt.Println(m.Topic, string(m.Payload))
		stop()
	})
	hub.Publish(memory.Message{Topic: "sensors/hall/1", Payload: []byte("21.5"), ID: "reading-1", QoS: 1})
	if err := bridge.Run(ctx); err != nil {
		fmt.Println(err)
	}
	fmt.Println("unsettled:", hub.Unsettled())
	// Output:
	// plant-7/sensors/hall/1 21.5
	// unsettled: 0
}
