package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gobridge/gobridge/bridgetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheEmbeddedBridgeForwards(t *testing.T) {
	t.Parallel()
	edge, cloud := bridgetest.StartEmbedded(t), bridgetest.StartEmbedded(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, plan(edge.URL(), cloud.URL(), t.TempDir()), slog.New(slog.NewTextHandler(t.Output(), nil)))
	}()
	arrived := make(chan string, 1)
	bridgetest.StartCollector(t, bridgetest.CollectorConfig{Addr: cloud.Addr(), Filter: "plant-7/#", QoS: 1, OnMessage: func(m *bridgetest.Message) {
		select {
		case arrived <- m.Topic:
		default:
		}
	}})
	// What is published before the bridge has subscribed is dropped by the broker.
	bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: edge.Addr(), Topic: "sensors/hall/1", N: 1000, QoS: 1, Rate: 20})
	select {
	case topic := <-arrived:
		if topic != "plant-7/sensors/hall/1" {
			t.Errorf("arrived at %s", topic)
		}
	case <-time.After(20 * time.Second):
		t.Error("nothing arrived")
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("run: %v", err)
	}
}
