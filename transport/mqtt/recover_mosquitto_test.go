package mqtt

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
	"github.com/gobridge/gobridge/metric"
)

// settling is a route that acknowledges, except where told otherwise, and counts what
// arrived.
type settling struct {
	r *recovering
	// refuse and giveBack say what to do with the n-th receipt of a payload, from 1.
	refuse, giveBack func(payload string, n int) bool

	mu      sync.Mutex
	receipt map[string]int
	settled map[string]int
	refused int
	back    int
}

func (s *settling) emit(batch []*gobridge.Delivery) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, d := range batch {
		p := string(d.Envelope.Payload)
		s.receipt[p]++
		switch {
		case s.refuse != nil && s.refuse(p, s.receipt[p]):
			s.refused++
			return i, errors.New("the route refuses this delivery")
		case s.giveBack != nil && s.giveBack(p, s.receipt[p]):
			if err := d.Retry(0, errors.New("dead letters cannot be written")); err != nil {
				return i, err
			}
			s.back++
		default:
			s.settled[p]++
			d.Ack()
		}
	}
	s.r.Receiver().Flush()
	return len(batch), nil
}

func (s *settling) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.settled)
}

// Every 100th message is refused, or given back, the first time it comes: it comes
// again, nothing is lost, and the counters tell the truth to the digit.
//
// Covers: S2-101, S2-106, S2-108
func TestUnsettledMessagesComeAgainOnMosquitto(t *testing.T) {
	t.Parallel()
	const n = 1000
	var number int
	first := func(payload string, receipt int) bool {
		_, err := fmt.Sscan(payload, &number)
		return err == nil && number%100 == 0 && receipt == 1
	}
	for _, refuses := range []bool{true, false} {
		t.Run(map[bool]string{true: "refused", false: "given back"}[refuses], func(t *testing.T) {
			broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{})
			env := gobridge.Env{Carried: newCarried(), Metrics: metric.NewRegistry(), History: newFakeHistory()}
			r := startRecovering(t, testUse(broker.URL(), gobridge.ModePersistent, topics(1, "in/#")), env,
				func(r *recovering) { r.spacing = 20 * time.Millisecond })
			to := &settling{r: r, receipt: map[string]int{}, settled: map[string]int{}}
			if to.giveBack = first; refuses {
				to.refuse, to.giveBack = first, nil
			}
			r.receiveEmit(t, to.emit)
			r.awaitReady(t)
			publisher := bridgetest.StartPublisher(t, bridgetest.PublisherConfig{Addr: broker.Addr(), Topic: "in/a", N: n, QoS: 1, Rate: 2000})
			publisher.Wait(t, 30*time.Second)
			eventually(t, "all are settled", func() bool { return to.count() == n })
			r.awaitReady(t)
			eventually(t, "nothing is open", func() bool { return r.Health().UnsettledCount == 0 })
			to.mu.Lock()
			defer to.mu.Unlock()
			recycles := r.value(metric.MQTTSessionRecoveryRecycle)
			t.Logf("%d refused, %d given back, %d recycles, %d purged", to.refused, to.back, recycles, r.value(metric.MQTTRouterStalePurged))
			if got := to.refused + to.back; got != n/100 {
				t.Errorf("%d were not settled at first, want %d", got, n/100)
			}
			r.wantValue(t, uint64(to.refused), metric.MQTTReceiverEmitRejected, metric.EmitRecovering)
			r.wantValue(t, 0, metric.MQTTReceiverEmitRejected, metric.EmitLost)
			if recycles < 1 || recycles > n/100 || r.Health().RecoveryRecycleCount != int(recycles) {
				t.Errorf("%d recycles, health says %d", recycles, r.Health().RecoveryRecycleCount)
			}
			r.wantValue(t, recycles, metric.MQTTReconnects)
			r.wantValue(t, 0, metric.MQTTSessionResumeLost)
		})
	}
}

// The broker forgets everything while a recovery is queued. The instance ends; the
// next one has flow again, although it finds the session that the connect of the dead
// one has left behind, which is empty.
//
// Covers: S2-302
func TestBrokerForgetsWhileARecoveryIsQueuedOnMosquitto(t *testing.T) {
	t.Parallel()
	for _, managed := range []bool{true, false} {
		t.Run(fmt.Sprintf("history=%t", managed), func(t *testing.T) {
			broker := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{Volatile: true})
			env := gobridge.Env{Carried: newCarried(), Metrics: metric.NewRegistry()}
			if managed {
				env.History = newFakeHistory()
			}
			use := func() *gobridge.SessionUse { return testUse(broker.URL(), gobridge.ModePersistent, topics(1, "in/#")) }
			r := startRecovering(t, use(), env, queuedOnly)
			to, _ := r.receive(t)
			r.awaitReady(t)
			client := bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: broker.Addr(), ClientID: "publisher"})
			publishAll(t, client, "in/a", false, "lost")
			if err := to.wait(t, 1)[0].Retry(0, errors.New("dead letters cannot be written")); err != nil {
				t.Fatalf("Retry: %v", err)
			}
			broker.Restart()
			r.wantDead(t, "queued: broker no longer had the session")
			r.wantValue(t, 0, metric.MQTTSessionRecoveryRecycle)

			next := startRecovering(t, use(), env)
			to, _ = next.receive(t)
			next.awaitReady(t)
			if !next.Health().SessionPresent {
				t.Error("the broker has no session of the dead instance: the test proves nothing")
			}
			client = bridgetest.MustConnect(t, bridgetest.ClientConfig{Addr: broker.Addr(), ClientID: "publisher"})
			publishAll(t, client, "in/a", false, "flows")
			d := to.wait(t, 1)[0]
			if string(d.Envelope.Payload) != "flows" {
				t.Errorf("received %q", d.Envelope.Payload)
			}
			d.Ack()
			next.Receiver().Flush()
			next.wantValue(t, 1, metric.MQTTSessionResumeLost)
			if n := r.messages.count("WARN broker no longer had") + next.messages.count("WARN broker no longer had"); n != 1 {
				t.Errorf("%d warnings of the loss, want 1", n)
			}
		})
	}
}
