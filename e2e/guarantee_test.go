package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/bridgetest"
)

// The tests in the files guarantee_*_test.go prove one row of the guarantee matrix
// each (docs/guarantees.md): with real brokers, real stores and crashes. Each judges by
// what arrived at the destination, and then asks the counters of each process for the
// same story. docs/guarantees.md names the tests that prove the other rows.

// row is a bridge between two brokers whose links can be disturbed.
type row struct {
	*config
	mode         string // delivery_mode
	source, dest *bridgetest.Mosquitto
	in, out      *bridgetest.Proxy // the bridge's links to source and dest
	pub          *bridgetest.Client
	path         string // of the config file, once it was written
}

func newRow(t *testing.T, mode string) *row {
	t.Helper()
	source := bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{LogPublishes: true})
	return rowTo(t, mode, source, bridgetest.StartMosquitto(t, bridgetest.MosquittoConfig{}))
}

func rowTo(t *testing.T, mode string, source, dest *bridgetest.Mosquitto) *row {
	t.Helper()
	in, out := bridgetest.NewProxy(t, source.Addr()), bridgetest.NewProxy(t, dest.Addr())
	return &row{
		config: between(t, in.URL(), out.URL()), mode: mode,
		source: source, dest: dest, in: in, out: out, pub: client(t, source.Addr()),
	}
}

// file returns the config as a document.
func (r *row) file() doc {
	f := r.config.file()
	f["routes"].([]doc)[0]["delivery_mode"] = r.mode
	return f
}

// start writes the config and runs it.
func (r *row) start(t *testing.T) *bridge {
	t.Helper()
	r.path = write(t, r.file())
	return run(t, r.path)
}

// startReady is start that waits until the bridge is ready.
func (r *row) startReady(t *testing.T) *bridge {
	t.Helper()
	b := r.start(t)
	b.waitReady("")
	return b
}

// cutOff stops the destination and waits until the bridge knows.
func (r *row) cutOff(b *bridge) {
	b.t.Helper()
	r.dest.Stop()
	b.waitNotReady("destination", patience)
}

// store returns the file of the bridge's stores.
func (r *row) store() string {
	return filepath.Join(r.bridge["data_dir"].(string), "gobridge.db")
}

// send publishes messages from to to-1 on in/x.
func (r *row) send(t *testing.T, qos byte, from, to int) {
	t.Helper()
	r.sendWith(t, &packets.Publish{Topic: "in/x", QoS: qos}, from, to)
}

// sendWith publishes messages from to to-1, which are like p and have their number as
// payload and as the id of their producer.
func (r *row) sendWith(t *testing.T, p *packets.Publish, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		m := &packets.Publish{Topic: p.Topic, QoS: p.QoS, Payload: fmt.Append(nil, i), Properties: &packets.Properties{
			User: []packets.User{{Key: "mqtt.message-id", Value: fmt.Sprintf("m-%d", i)}},
		}}
		if p.Properties != nil {
			m.Properties.MessageExpiry = p.Properties.MessageExpiry
		}
		publish(t, r.pub, m)
	}
}

// report waits until nothing arrives any more, and judges by n messages sent.
func report(t *testing.T, col *bridgetest.Collector, n int) bridgetest.Report {
	t.Helper()
	if !col.WaitQuiet(300*time.Millisecond, patience) {
		t.Error("messages still arrive")
	}
	r := col.Report(bridgetest.Ledger{Sent: n, Acked: n})
	t.Log(r)
	return r
}

// expectLost expects that of n messages the first lost ones did not arrive, and the
// others once.
func expectLost(t *testing.T, col *bridgetest.Collector, lost, n int) {
	t.Helper()
	mustArrive(t, col, n-lost)
	r := report(t, col, n)
	if len(r.Lost) != lost || lost > 0 && r.Lost[lost-1] != lost-1 || r.Duplicates > 0 || r.ForeignCount > 0 {
		t.Errorf("want the first %d of %d messages lost and the others once: %v", lost, n, r)
	}
}

func mustArrive(t *testing.T, col *bridgetest.Collector, n int) {
	t.Helper()
	if !col.WaitFor(n, patience) {
		t.Fatalf("%d of %d messages arrived", col.Count(), n)
	}
}

// held waits until so many messages are in flight, which have no outcome yet and are
// not acknowledged to their source.
func (r *row) held(b *bridge, n int) {
	b.t.Helper()
	b.eventually(patience, fmt.Sprintf("%d messages in flight", n), func() bool {
		return b.metrics().sum("gobridge_messages_in_flight") == float64(n)
	})
	want := counts{"messages_received": float64(n)}
	for _, name := range outcomes {
		want[name] = 0
	}
	b.expect(want)
	b.balanced(0)
	expectAcked(b.t, r.source, 0)
}

// announced expects one warning of the log with all of the texts.
func (b *bridge) announced(texts ...string) {
	b.t.Helper()
	if lines := b.logged(append(texts, "level=WARN")...); len(lines) != 1 {
		b.t.Errorf("warnings with %q: %q, want one", texts, lines)
	}
}

// refused expects that neither validate nor run takes a config, both with all of the
// texts, and that nothing connects to its source.
func (r *row) refused(t *testing.T, texts ...string) {
	t.Helper()
	path := write(t, r.file())
	for _, args := range [][]string{{"validate", path}, {"run", "-c", path}} {
		stdout, stderr, code := command(t, nil, args...)
		for _, text := range texts {
			if code != 1 || !strings.Contains(stdout+stderr, text) {
				t.Errorf("gobridge %s: exit code %d, want 1 and %q in\n%s%s", args[0], code, text, stdout, stderr)
			}
		}
	}
	if n := r.in.Accepted(); n != 0 {
		t.Errorf("%d connections to the source, want none", n)
	}
}

// The rule above all rows: they are about the packet that came, not about the filter
// that let it in. What a publisher sends at QoS 0 through a filter of QoS 1 ends with
// the process; what it sends at QoS 1 comes again.
//
// Covers: G01, G04, G06, G07
func TestRowsAreAboutThePacketAndNotItsFilter(t *testing.T) {
	t.Parallel()
	const n = 20
	for _, mode := range []string{gobridge.DirectHold, gobridge.SharedOutbox} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := newRow(t, mode)
			col := collect(t, r.dest.Addr(), "out/#")
			b := r.startReady(t)
			var mend func()
			if mode == gobridge.SharedOutbox {
				mend = lockFile(t, r.store()) // nothing can be stored
			} else {
				r.cutOff(b)
				mend = r.dest.Start
			}
			r.send(t, 0, 0, n)
			r.send(t, 1, n, 2*n)
			r.held(b, 2*n)
			b.Kill9()
			mend()
			b = r.startReady(t)
			expectLost(t, col, n, 2*n)
			expectAcked(t, r.source, n)
			b.expect(counts{"messages_received": n, "messages_sent": n})
			b.quietLosses()
			b.conserved()
			b.stop()
		})
	}
}

// Covers: G19
func TestG19LostAnswersMakeRepeats(t *testing.T) {
	t.Parallel()
	const n = 50
	for _, mode := range []string{gobridge.DirectHold, gobridge.SharedOutbox} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := newRow(t, mode)
			col := collect(t, r.dest.Addr(), "out/#")
			b := r.startReady(t)
			r.out.BlackHoleOneWay(bridgetest.ToClient, true)
			r.send(t, 1, 0, n)
			mustArrive(t, col, n)
			b.expect(counts{"messages_received": n, "messages_sent": 0})
			if mode == gobridge.DirectHold {
				r.held(b, n)
			} else {
				b.waitDepth(n, patience)
			}
			r.out.BlackHoleOneWay(bridgetest.ToClient, false) // ends the connection
			b.expect(counts{"messages_received": n, "messages_sent": n, "mqtt_reconnects session_id=destination": 1})
			got := report(t, col, n)
			if nothingLost(t, got); got.Duplicates != n {
				t.Errorf("%d repeats, want each of the %d messages once more", got.Duplicates, n)
			}
			expectAcked(t, r.source, n)
			b.quietLosses()
			b.conserved()
			b.stop()
		})
	}
}
