// Command embed is a Go program with a bridge between two MQTT brokers in it. The
// spec is the config of gobridge run in Go; its checks and defaults are the same.
//
//	go run ./examples/embed tcp://127.0.0.1:1883 tcp://127.0.0.1:2883
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/engine"
	"github.com/gobridge/gobridge/kinds"
	"github.com/gobridge/gobridge/transport/mqtt"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: embed EDGE_URL CLOUD_URL")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, plan(os.Args[1], os.Args[2], "data"), slog.Default()); err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}

// plan describes a bridge that takes what is published at the edge under sensors/ to
// plant-7/sensors/ in the cloud. A message is acknowledged at the edge once the cloud
// has confirmed it.
func plan(edge, cloud, dataDir string) *gobridge.Spec {
	qos := 1
	return &gobridge.Spec{
		Bridge: gobridge.BridgeSpec{ID: "plant-7", DataDir: dataDir},
		Sessions: []gobridge.SessionSpec{
			{ID: "edge", Transport: "mqtt", Mode: gobridge.ModePersistent, Options: session(edge, "plant-7-edge")},
			{ID: "cloud", Transport: "mqtt", Options: session(cloud, "plant-7-cloud")},
		},
		Routes: []gobridge.RouteSpec{{
			ID:           "up",
			DeliveryMode: gobridge.DirectHold,
			Receiver:     &gobridge.ReceiverSpec{SessionID: "edge", Topics: []gobridge.TopicSpec{{Topic: "sensors/#", QoS: &qos}}},
			Bindings: []gobridge.BindingSpec{{
				Sender:  &gobridge.SenderSpec{SessionID: "cloud"},
				Address: "plant-7/{topic}",
			}},
		}},
	}
}

// session are the options of an MQTT session, the defaults but for these.
func session(url, clientID string) *mqtt.SessionOptions {
	o := mqtt.Transport().SessionOptions().(*mqtt.SessionOptions)
	o.Session.BrokerURL, o.Session.ClientID = url, clientID
	return o
}

// run runs a bridge until ctx ends. It then takes nothing more, waits for what is
// under way, and returns. A broker that is away is no error: the bridge waits for it.
func run(ctx context.Context, spec *gobridge.Spec, log *slog.Logger) error {
	bridge, err := engine.New(spec, engine.Options{Kinds: kinds.All(), Logger: log})
	if err != nil {
		return err
	}
	return bridge.Run(ctx)
}
