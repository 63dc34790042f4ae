//go:build unix

package sqlite

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

// benchOutbox opens an outbox in dir that keeps that much evidence.
func benchOutbox(b *testing.B, dir string, maxDone int) *Outbox {
	b.Helper()
	s := settings{path: filepath.Join(dir, fileName), log: slog.New(slog.DiscardHandler), metrics: metric.NewRegistry()}
	s.lock = filepath.Join(dir, lockName)
	o, err := attach(s, func(d *database) (*Outbox, error) { return newOutbox(b.Context(), d, time.Hour, maxDone) })
	if err != nil {
		b.Fatal(err)
	}
	return o
}

// benchRecord is a message with a body of 512 bytes and an id of its producer.
func benchRecord(n int, body []byte) *gobridge.OutboxRecord {
	return &gobridge.OutboxRecord{
		RouteID: "sensors-up", BindingID: "cloud", Address: "site-1/sensors/7/temperature",
		Envelope: gobridge.Envelope{
			ID: "01890a5d-ac96-774b-bcce-" + strconv.Itoa(n), IDOrigin: gobridge.IDProducer, Topic: "sensors/7/temperature",
			Payload: body, QoS: 1, CreatedAt: time.Unix(1_700_000_000, int64(n)),
		},
	}
}

// benchDone completes what was persisted, then gives its place to another message.
type benchDone struct {
	o       *Outbox
	places  chan struct{}
	latency []time.Duration // of Persist; the writer goroutine's until the end
}

func (d *benchDone) OutboxDone(records []*gobridge.OutboxRecord, err error) {
	if err != nil {
		panic(err)
	}
	d.latency = append(d.latency, time.Since(records[0].Ref.(time.Time)))
	d.o.Complete(records, (*benchCompleted)(d))
}

type benchCompleted benchDone

func (d *benchCompleted) OutboxDone(_ []*gobridge.OutboxRecord, err error) {
	if err != nil {
		panic(err)
	}
	d.places <- struct{}{}
}

func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkOutbox persists and completes messages with n of them under way at a
// time: the groups of the writer are as large as that lets them be.
func BenchmarkOutbox(b *testing.B) {
	body := make([]byte, 512)
	for _, tt := range []struct{ n, maxDone int }{
		{1, maxDone},
		{16, maxDone},
		{64, maxDone},
		{256, maxDone},
		{256, 5000}, // evidence goes as fast as it comes
	} {
		n := tt.n
		b.Run(fmt.Sprintf("underway=%d/evidence=%d", n, tt.maxDone), func(b *testing.B) {
			dir := b.TempDir()
			o := benchOutbox(b, dir, tt.maxDone)
			done := &benchDone{o: o, places: make(chan struct{}, n)}
			for range n {
				done.places <- struct{}{}
			}
			cpu, i := cpuTime(), 0
			for b.Loop() {
				<-done.places
				r := benchRecord(i, body)
				r.Ref = time.Now()
				o.Persist([]*gobridge.OutboxRecord{r}, done)
				i++
			}
			for range n {
				<-done.places
			}
			b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-us/msg")
			if err := o.Close(); err != nil {
				b.Fatal(err)
			}
			slices.Sort(done.latency)
			for _, p := range []int{50, 99} {
				at := done.latency[len(done.latency)*p/100]
				b.ReportMetric(float64(at.Microseconds())/1000, fmt.Sprintf("p%d-ms", p))
			}
			info, err := os.Stat(filepath.Join(dir, fileName))
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(info.Size())/float64(b.N), "file-bytes/msg")
		})
	}
}

// backlogSize is the number of records of the backlog benchmarks.
func backlogSize() int { return long(100_000, 1_000_000) }

// storeBacklog fills an outbox.
func storeBacklog(b *testing.B, o *Outbox, n int) {
	b.Helper()
	body := make([]byte, 512)
	const group = 500
	done := make(outcomes, 1)
	for i := 0; i < n; i += group {
		records := make([]*gobridge.OutboxRecord, group)
		for j := range records {
			records[j] = benchRecord(i+j, body)
		}
		o.Persist(records, done)
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRecovery opens a store with a backlog and reads the first page.
func BenchmarkRecovery(b *testing.B) {
	n := backlogSize()
	dir := b.TempDir()
	o := benchOutbox(b, dir, maxDone)
	storeBacklog(b, o, n)
	if err := o.Close(); err != nil {
		b.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, fileName))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		o = benchOutbox(b, dir, maxDone)
		page, err := o.Pending(b.Context(), "cloud", 0, 512, 4<<20)
		if err != nil || len(page) != 512 || o.Depth("cloud") != n {
			b.Fatalf("%d records of %d: %v", len(page), o.Depth("cloud"), err)
		}
		if err := o.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/float64(n)*1e6, "s/million")
	b.ReportMetric(float64(info.Size())/float64(n), "file-bytes/record")
}

// BenchmarkDrain reads a backlog page by page and completes it in order.
func BenchmarkDrain(b *testing.B) {
	n := backlogSize()
	var drained int
	var took, cpu time.Duration
	for b.Loop() {
		b.StopTimer()
		dir := b.TempDir()
		o := benchOutbox(b, dir, maxDone)
		storeBacklog(b, o, n)
		b.StartTimer()
		start, used := time.Now(), cpuTime()
		done := make(outcomes, n)
		for after := uint64(0); ; {
			page, err := o.Pending(b.Context(), "cloud", after, 512, 4<<20)
			if err != nil {
				b.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			for part := range slices.Chunk(page, 64) {
				o.Complete(part, done)
				drained += len(part)
			}
			after = page[len(page)-1].Seq
		}
		if err := o.Close(); err != nil {
			b.Fatal(err)
		}
		took, cpu = took+time.Since(start), cpu+cpuTime()-used
		info, err := os.Stat(filepath.Join(dir, fileName))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(info.Size())/float64(n)*1e6/(1<<20), "file-MiB/million")
	}
	b.ReportMetric(float64(drained)/took.Seconds(), "msg/s")
	b.ReportMetric(float64(cpu.Microseconds())/float64(drained), "cpu-us/msg")
}
