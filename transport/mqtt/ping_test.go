package mqtt

import (
	"testing"
	"time"
)

func TestKeeperDecides(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	tests := []struct {
		name             string
		alive, pinged    float64 // the keeper's memory
		now, sent, heard float64
		ping, dead       bool
		wait             time.Duration
	}{
		{"nothing sent for one keep-alive", 9, -1, 10, 0, 9, true, false, 5 * time.Second},
		{"nothing heard for one keep-alive", 0, -1, 10, 9, 0, true, false, 5 * time.Second},
		{"busy both ways", 0, -1, 10, 8, 9, false, false, 8 * time.Second},
		{"busy, heard longer ago", 0, -1, 10, 9, 7, false, false, 7 * time.Second},
		{"answer not due yet", 0, 10, 12, 10, 0, false, false, 3 * time.Second},
		{"no answer for one and a half", 0, 10, 15, 10, 0, false, true, 0},
		{"answered", 0, 10, 15, 10, 10.1, false, false, 5 * time.Second},
		{"anything heard is an answer", 0, 10, 15, 14, 13, false, false, 8 * time.Second},
		{"process was stopped: ping first", 0, -1, 60, 0, 0, true, false, 5 * time.Second},
		{"process was stopped while waiting", 0, 60, 61, 60, 0, false, false, 4 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := keeper{interval: 10 * time.Second, alive: at(tt.alive)}
			if tt.pinged >= 0 {
				k.pinged = at(tt.pinged)
			}
			ping, dead, wait := k.check(at(tt.now), at(tt.sent), at(tt.heard))
			if ping != tt.ping || dead != tt.dead || wait != tt.wait {
				t.Errorf("got ping %v, dead %v, wait %s; want %v, %v, %s", ping, dead, wait, tt.ping, tt.dead, tt.wait)
			}
		})
	}
}
