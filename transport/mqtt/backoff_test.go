package mqtt

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoffGrowsUntilAConnectionIsStable(t *testing.T) {
	b := newBackoff(time.Second, 10*time.Second)
	if wait := b.next(); wait != 0 {
		t.Errorf("first attempt after %s, want at once", wait)
	}
	bounds := []time.Duration{1, 2, 4, 8, 10, 10}
	for i, bound := range bounds {
		bound *= time.Second
		if i%2 == 1 {
			b.lost(stableAfter-1, false) // a short connection does not start it anew
		}
		if wait := b.next(); wait <= 0 || wait > bound {
			t.Errorf("wait %d is %s, want at most %s", i, wait, bound)
		}
	}
	b.lost(stableAfter, true)
	if wait := b.next(); wait > time.Second {
		t.Errorf("wait after a stable connection is %s, want at most 1s", wait)
	}
}

func TestBackoffHasFullJitter(t *testing.T) {
	low, high := 0, 0
	for range 200 {
		b := newBackoff(time.Second, time.Second)
		b.next()
		if b.next() < time.Second/2 {
			low++
		} else {
			high++
		}
	}
	if low < 50 || high < 50 {
		t.Errorf("%d waits in the lower half, %d in the upper", low, high)
	}
}

func TestBackoffFloors(t *testing.T) {
	b := newBackoff(time.Millisecond, time.Minute)
	b.next()
	b.takenOver()
	if wait := b.next(); wait < takeoverWait {
		t.Errorf("wait after a takeover %s", wait)
	}
	if wait := b.next(); wait >= takeoverWait {
		t.Errorf("the floor stayed: %s", wait)
	}
	b.refused()
	if wait := b.next(); wait != time.Minute {
		t.Errorf("wait after a refusal %s, want the longest one", wait)
	}
	long := newBackoff(time.Millisecond, time.Hour)
	long.next()
	long.refused()
	if wait := long.next(); wait < permanentWait {
		t.Errorf("wait after a refusal %s, want at least %s", wait, permanentWait)
	}
	b.skip()
	if wait := b.next(); wait != 0 {
		t.Errorf("wait of a wanted reconnect %s", wait)
	}
	short := newBackoff(time.Millisecond, time.Second)
	short.next()
	short.takenOver()
	if wait := short.next(); wait != time.Second {
		t.Errorf("takeover with a short reconnect_max_delay waits %s, want 1s", wait)
	}
}

func TestWakeEndsTheWaitUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackoff(time.Hour, time.Hour)
		stop := make(chan struct{})
		took := func() time.Duration {
			began := time.Now()
			if b.wait(stop) {
				t.Error("stopped")
			}
			return time.Since(began)
		}
		if d := took(); d != 0 {
			t.Errorf("first attempt after %s", d)
		}
		b.refused()
		time.AfterFunc(time.Second, b.wake)
		if d := took(); d != time.Second {
			t.Errorf("woken after %s, want 1s", d)
		}
		if d := took(); d == 0 {
			t.Error("one wake ended two waits")
		}
		b.wake() // nobody waits
		b.refused()
		if d := took(); d != 0 {
			t.Errorf("wait after a wake %s, want none", d)
		}
		if d := b.next(); d == time.Hour {
			t.Error("what was refused before the wake still counts")
		}
		close(stop)
		if !b.wait(stop) {
			t.Error("not stopped")
		}
	})
}

func TestThreeFlapsAreTakenForATakeover(t *testing.T) {
	b := newBackoff(time.Millisecond, time.Minute)
	for range 5 {
		if b.lost(time.Second, false) {
			t.Error("a cut link was taken for a takeover")
		}
	}
	for i, want := range []bool{false, false, true, true} {
		if got := b.lost(time.Second, true); got != want {
			t.Errorf("flap %d: takeover %v, want %v", i+1, got, want)
		}
	}
	b.lost(time.Minute, true)
	if b.lost(time.Second, true) {
		t.Error("a stable connection did not end the row")
	}
}

func TestRepeatedErrorIsLoggedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r repeated
		lines, events := 0, 0
		for range 180 {
			if n, ok := r.allowText("refused", time.Now()); ok {
				lines++
				events += n
			}
			time.Sleep(time.Second)
		}
		if lines != 3 || events != 121 {
			t.Errorf("%d lines for %d events, want 3 for 121", lines, events)
		}
		if _, ok := r.allowText("timeout", time.Now()); !ok {
			t.Error("a new error was not logged")
		}
		r.forget()
		if _, ok := r.allowText("timeout", time.Now()); !ok {
			t.Error("an error after a success was not logged")
		}
	})
}

// The wait of an instance that ends goes on for the next one, which shares the backoff.
func TestWaitThatIsCutShortIsNotForgiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBackoff(time.Second, time.Minute)
		b.next() // the first attempt is immediate
		b.refused()
		stop := make(chan struct{})
		time.AfterFunc(20*time.Second, func() { close(stop) })
		if !b.wait(stop) {
			t.Fatal("the wait was not stopped")
		}
		began := time.Now()
		b.wait(nil)
		if got := time.Since(began); got != 40*time.Second {
			t.Errorf("the next instance waits %s, want the 40s that are left", got)
		}
	})
}
