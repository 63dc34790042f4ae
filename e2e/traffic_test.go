package e2e

import (
	"strings"
	"testing"
)

// traffic is what the log of a mosquitto with LogPublishes tells of what it sent to
// one client.
type traffic struct {
	connects   int
	sent       int
	acked      int
	openAtEnd  []int // messages sent and not acknowledged, at the end of each connection but the last
	openNow    int
	peak       int // most open messages at a time, over all connections
	peakOfLast int // over the last connection
}

// trafficTo reads a broker's log. An acknowledgement is PUBACK, or PUBREC for QoS 2.
func trafficTo(log, clientID string) traffic {
	var tr traffic
	for line := range strings.Lines(log) {
		switch {
		case !strings.Contains(line, " "+clientID):
		case strings.Contains(line, "New client connected from ") && strings.Contains(line, " as "+clientID+" "):
			if tr.connects > 0 {
				tr.openAtEnd = append(tr.openAtEnd, tr.openNow)
			}
			tr.connects++
			tr.openNow, tr.peakOfLast = 0, 0
		case strings.Contains(line, "Sending PUBLISH to "+clientID+" ("):
			tr.sent++
			tr.openNow++
			tr.peak, tr.peakOfLast = max(tr.peak, tr.openNow), max(tr.peakOfLast, tr.openNow)
		case strings.Contains(line, "Received PUBACK from "+clientID+" ("), strings.Contains(line, "Received PUBREC from "+clientID+" ("):
			tr.acked++
			tr.openNow--
		}
	}
	return tr
}

// sum adds numbers.
func sum(numbers []int) int {
	total := 0
	for _, n := range numbers {
		total += n
	}
	return total
}

func TestTrafficIsReadFromTheBrokersLog(t *testing.T) {
	const log = `18:00:00: New client connected from 127.0.0.1:1 as x (p5, c0, k30).
18:00:00: New client connected from 127.0.0.1:1 as xx (p5, c0, k30).
18:00:01: Sending PUBLISH to x (d0, q1, r0, m1, 'in/x', ... (1 bytes))
18:00:01: Sending PUBLISH to x (d0, q1, r0, m2, 'in/x', ... (1 bytes))
18:00:01: Sending PUBLISH to xx (d0, q1, r0, m2, 'in/x', ... (1 bytes))
18:00:01: Received PUBACK from x (Mid: 1, RC:0)
18:00:02: New client connected from 127.0.0.1:2 as x (p5, c0, k30).
18:00:03: Sending PUBLISH to x (d1, q1, r0, m2, 'in/x', ... (1 bytes))
18:00:03: Received PUBACK from x (Mid: 2, RC:0)
`
	tr := trafficTo(log, "x")
	if tr.connects != 2 || tr.sent != 3 || tr.acked != 2 || tr.peak != 2 || tr.peakOfLast != 1 || tr.openNow != 0 || sum(tr.openAtEnd) != 1 {
		t.Errorf("got %+v", tr)
	}
}
