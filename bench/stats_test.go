package main

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMedianIsTheMiddleOrTheMeanOfTwo(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in   sample
		want float64
	}{
		{nil, 0},
		{sample{3}, 3},
		{sample{9, 1, 4}, 4},
		{sample{9, 1, 4, 2}, 3},
	} {
		if got := tc.in.median(); got != tc.want {
			t.Errorf("median of %v is %v, want %v", tc.in, got, tc.want)
		}
	}
}

// twoBridges has a slow second round: comparing within rounds must not see it.
var twoBridges = results{
	{Setting: "brokers", Contender: "mosquitto-200", Round: 1, Values: map[metric]float64{msgRate: 100, latencyP50: 1}},
	{Setting: "brokers", Contender: "gobridge", Round: 1, Values: map[metric]float64{msgRate: 120, latencyP50: 1.5}},
	{Setting: "brokers", Contender: "gobridge", Round: 2, Values: map[metric]float64{msgRate: 12, latencyP50: 3}},
	{Setting: "brokers", Contender: "mosquitto-200", Round: 2, Values: map[metric]float64{msgRate: 10, latencyP50: 2}},
	{Setting: "brokers", Contender: "mosquitto-200", Round: 3, Error: "stalled", Values: map[metric]float64{msgRate: 1, lost: 7}},
	{Setting: "brokers", Contender: "gobridge", Round: 3, Values: map[metric]float64{msgRate: 50}},
}

func TestComparisonIsMadeWithinRounds(t *testing.T) {
	t.Parallel()
	got := twoBridges.against("gobridge", "mosquitto-200", msgRate, ratio)
	if diff := cmp.Diff(sample{1.2, 1.2}, got); diff != "" {
		t.Errorf("ratios (-want +got):\n%s", diff)
	}
	got = twoBridges.against("gobridge", "mosquitto-200", latencyP50, difference)
	if diff := cmp.Diff(sample{0.5, 1}, got); diff != "" {
		t.Errorf("differences (-want +got):\n%s", diff)
	}
}

func TestFailedRunIsNoFigureAndIsReported(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(sample{100, 10}, twoBridges.of("mosquitto-200", msgRate)); diff != "" {
		t.Errorf("rates (-want +got):\n%s", diff)
	}
	rep := &report{Results: twoBridges, NotRun: []string{"fake/direct: a reason"}}
	if !rep.failed() {
		t.Error("a report with a failed run passes")
	}
	var b strings.Builder
	if err := rep.markdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| mosquitto-200 | 2 | 55 (10 to 100) | - | - |",
		"| gobridge | 3 | 50 (12 to 120) | - | 1.20 (1.20 to 1.20) |",
		"- brokers/mosquitto-200: 7 lost\n",
		"- FAILED brokers/mosquitto-200 round 3: stalled\n",
		"NOT RUN: fake/direct: a reason\n",
		"The peer of gobridge is mosquitto-200.\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report has no %q:\n%s", want, b.String())
		}
	}
}

func TestTallyCountsEveryMessageOnce(t *testing.T) {
	t.Parallel()
	message := func(phase, seq uint32) []byte {
		payload := make([]byte, stampSize)
		stamp(payload, phase, seq)
		return payload
	}
	tl := newTally(2, 3, true)
	for _, m := range [][2]uint32{{0, 0}, {2, 0}, {2, 2}, {2, 2}, {1, 9}, {2, 1}, {2, 0}} {
		if err := tl.add(message(m[0], m[1])); err != nil {
			t.Errorf("message %v: %v", m, err)
		}
	}
	received, twice, late := tl.count()
	if got, want := [3]int{received, twice, late}, [3]int{3, 3, 1}; got != want {
		t.Errorf("received, duplicates, out of order: got %v, want %v", got, want)
	}
	select {
	case <-tl.done:
	default:
		t.Error("all have arrived and the tally is not done")
	}
	for name, payload := range map[string][]byte{
		"a later phase": message(3, 0), "a number over the last": message(2, 3), "a foreign payload": []byte("on"),
	} {
		if err := tl.add(payload); err == nil {
			t.Errorf("%s is counted", name)
		}
	}
}

func TestLatencyIsArrivalMinusStamp(t *testing.T) {
	t.Parallel()
	tl := newTally(1, 100, true)
	for seq := range 100 {
		payload := make([]byte, stampSize)
		stamp(payload, 1, uint32(seq))
		ago := 20 * time.Millisecond
		if seq >= 90 {
			ago = 2 * time.Second
		}
		binary.BigEndian.PutUint64(payload[8:], uint64(time.Since(epoch)-ago))
		if err := tl.add(payload); err != nil {
			t.Fatal(err)
		}
	}
	if got := tl.percentile(50); got < 20 || got > 1000 {
		t.Errorf("p50 is %v ms, want a little over 20", got)
	}
	if got := tl.percentile(99); got < 2000 {
		t.Errorf("p99 is %v ms, want a little over 2000", got)
	}
}

func TestWindowBlocksUntilAcknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(3)
		if n, err := w.acquire(64); n != 3 || err != nil {
			t.Fatalf("got %d, %v, want the whole window of 3", n, err)
		}
		next := make(chan int)
		go func() {
			n, _ := w.acquire(64)
			next <- n
		}()
		synctest.Wait()
		select {
		case n := <-next:
			t.Fatalf("got %d with nothing acknowledged", n)
		default:
		}
		w.release(2)
		if n := <-next; n != 2 {
			t.Errorf("got %d, want the 2 released", n)
		}
		drained := make(chan error)
		go func() { drained <- w.drained() }()
		w.release(2)
		synctest.Wait()
		select {
		case err := <-drained:
			t.Fatalf("drained with one open: %v", err)
		default:
		}
		broken := errors.New("broken")
		w.fail(broken)
		if err := <-drained; !errors.Is(err, broken) {
			t.Errorf("got %v, want the failure", err)
		}
		if _, err := w.acquire(1); !errors.Is(err, broken) {
			t.Errorf("got %v, want the failure", err)
		}
	})
}

func TestProcFilesAreRead(t *testing.T) {
	t.Parallel()
	if d, err := parseSchedstat("3883014 10227078 3\n"); d != 3883014*time.Nanosecond || err != nil {
		t.Errorf("schedstat: got %v, %v", d, err)
	}
	if _, err := parseSchedstat(""); err == nil {
		t.Error("an empty schedstat is a time")
	}
	const status = "Name:\tmosquitto\nVmHWM:\t    9056 kB\nVmRSS:\t    8056 kB\n"
	if n, err := parseStatus(status, "VmRSS"); n != 8056*1024 || err != nil {
		t.Errorf("VmRSS: got %d, %v", n, err)
	}
	if _, err := parseStatus("Name:\tmosquitto\nState:\tZ (zombie)\n", "VmRSS"); err == nil {
		t.Error("a dead process has memory")
	}
	if got := cpuModel("processor\t: 0\nmodel name\t: AMD EPYC\n"); got != "AMD EPYC" {
		t.Errorf("cpu model: got %q", got)
	}
}
