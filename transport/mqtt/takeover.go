package mqtt

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// takeoverLog decides how loudly a takeover of the session by another client is told.
// It outlives instances: the first takeover is the first of the process. Safe for
// concurrent use.
type takeoverLog struct {
	mu    sync.Mutex
	told  bool
	again repeated
}

// next returns the level of the next takeover's log line and how many it stands for;
// ok is false for one that is not logged. The first is an error: somebody reuses the
// client id of this session. The later ones say nothing new and are warnings, thinned
// out. A session under a lease is meant to be taken over, by its next owner.
func (t *takeoverLog) next(owned bool, now time.Time) (level slog.Level, times int, ok bool) {
	t.mu.Lock()
	first := !t.told && !owned
	t.told = t.told || first
	t.mu.Unlock()
	if first {
		return slog.LevelError, 1, true
	}
	times, ok = t.again.allow(now)
	return slog.LevelWarn, times, ok
}

// takenOver logs a takeover, reported by the broker or inferred (D7), and says so in
// the health.
func (s *session) takenOver(reported bool) {
	told := &s.carried.reported
	what, state := "another client with the same client id took the session over", " is in use elsewhere: waiting before the next try"
	if !reported {
		told = &s.carried.inferred
		what, state = "connections end right after they were accepted: another client may use the same client id", " may be in use elsewhere: waiting before the next try"
	}
	s.tell("client id " + s.set.ClientID + state)
	owned := s.out.fence != nil // then it may be the next owner
	level, times, ok := told.next(owned, time.Now())
	if !ok {
		return
	}
	hint := "give each instance its own client_id"
	switch {
	case owned:
		hint = "right after the lease went to another instance this is expected"
	case s.sharing:
		hint = "the members of a $share group reuse one client_id, so all but one receive nothing: write client_id_suffix: hostname, or a client_id for each"
	case !reported:
		hint = "give each instance its own client_id, or look at the broker's log"
	}
	s.log.Log(context.Background(), level, what, "client_id", s.set.ClientID, "share", s.sharing, "times", times, "hint", hint)
}
