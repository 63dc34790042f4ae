package admin

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobridge/gobridge"
)

const (
	rightKey = "S3cr3t-of-operations"
	otherKey = "S3cr3t-of-the-console"
	wrongKey = "Gue55ed-0123456789"
)

func twoKeys() []Key {
	return []Key{{"ops", gobridge.NewSecret(rightKey)}, {"console", gobridge.NewSecret(otherKey)}}
}

func TestWhoMayUseTheAPI(t *testing.T) {
	t.Parallel()
	const path = "/api/v1/admin/dlq"
	const loopback, v6, mapped, remote = "127.0.0.1:5555", "[::1]:5555", "[::ffff:127.0.0.1]:5555", "192.0.2.7:5555"
	for _, c := range []struct {
		name    string
		keys    []Key
		peer    string
		target  string
		headers []string
		status  int
	}{
		{"loopback without keys", nil, loopback, path, nil, 200},
		{"loopback of IPv6", nil, v6, path, nil, 200},
		{"loopback in an IPv6 socket", nil, mapped, path, nil, 200},
		{"another machine without keys", nil, remote, path, nil, 403},
		{"another machine with a key that nobody set", nil, remote, path, []string{"X-API-Key", rightKey}, 403},
		{"a proxy on this machine", nil, loopback, path, []string{"X-Forwarded-For", "192.0.2.7"}, 403},
		{"another proxy on this machine", nil, loopback, path, []string{"Forwarded", "for=192.0.2.7"}, 403},
		{"a name that was pointed here", nil, loopback, "http://evil.example:8080" + path, nil, 403},
		{"the address as a name", nil, loopback, "http://127.0.0.1:8080" + path, nil, 200},
		{"the address without a port", nil, loopback, "http://[::1]" + path, nil, 200},
		{"no address", nil, "@", path, nil, 403},

		{"bearer", twoKeys(), remote, path, []string{"Authorization", "Bearer " + rightKey}, 200},
		{"bearer in small letters", twoKeys(), remote, path, []string{"Authorization", "bearer  " + otherKey}, 200},
		{"API key", twoKeys(), remote, path, []string{"X-API-Key", otherKey}, 200},
		{"API key beside the login of a proxy", twoKeys(), remote, path, []string{"Authorization", "Basic eDp5", "X-API-Key", rightKey}, 200},
		{"a name in front of a proxy", twoKeys(), remote, "http://bridge.example" + path, []string{"X-Forwarded-For", "192.0.2.9", "X-API-Key", rightKey}, 200},
		{"no key", twoKeys(), remote, path, nil, 401},
		{"loopback without its key", twoKeys(), loopback, path, nil, 401},
		{"wrong key", twoKeys(), remote, path, []string{"X-API-Key", wrongKey}, 401},
		{"part of a key", twoKeys(), remote, path, []string{"X-API-Key", rightKey[:10]}, 401},
		{"the name of a key", twoKeys(), remote, path, []string{"X-API-Key", "ops"}, 401},
		{"key as a password", twoKeys(), remote, path, []string{"Authorization", "Basic " + rightKey}, 401},
		{"key in the query", twoKeys(), remote, path + "?key=" + rightKey, nil, 401},
		{"unset secret", []Key{{"ops", gobridge.Secret{}}}, remote, path, []string{"X-API-Key", ""}, 401},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, c.keys...)
			w := r.askFrom(c.peer, "GET", c.target, "", c.headers...)
			if w.Code != c.status {
				t.Errorf("status = %d, want %d", w.Code, c.status)
			}
			if got := w.Header().Get("WWW-Authenticate"); (got != "") != (c.status == 401) {
				t.Errorf("WWW-Authenticate = %q with status %d", got, c.status)
			}
			for _, secret := range []string{rightKey, otherKey, wrongKey} {
				if strings.Contains(r.log.String(), secret) {
					t.Errorf("the log holds a key:\n%s", r.log)
				}
			}
		})
	}
}

func TestRefusalsAreExact(t *testing.T) {
	t.Parallel()
	r := newRig(t, twoKeys()...)
	r.want(r.ask("GET", "/api/v1/admin/dlq", ""), 401, `{
  "error": "admin key missing",
  "hint": "send Authorization: Bearer KEY or X-API-Key: KEY with one of http.admin_keys"
}
`)
	for range maxFailures {
		r.want(r.ask("GET", "/api/v1/admin/dlq", "", "X-API-Key", wrongKey), 401, `{
  "error": "admin key not known",
  "hint": "send Authorization: Bearer KEY or X-API-Key: KEY with one of http.admin_keys"
}
`)
	}
	w := r.ask("GET", "/api/v1/admin/dlq", "", "X-API-Key", wrongKey)
	r.want(w, 429, `{
  "error": "too many wrong admin keys from this address",
  "hint": "try again in 60 s; a right key is not affected"
}
`)
	if got := w.Header().Get("Retry-After"); got != "60" {
		t.Errorf("Retry-After = %q, want 60", got)
	}
}

func TestWrongKeysAreThrottledByAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, twoKeys()...)
		status := func(peer, key string) int {
			return r.askFrom(peer, "GET", "/api/v1/admin/dlq", "", "X-API-Key", key).Code
		}
		for i := range maxFailures {
			if got := status("192.0.2.7:1", wrongKey); got != 401 {
				t.Fatalf("failure %d: status %d", i, got)
			}
			time.Sleep(10 * time.Second)
		}
		for _, c := range []struct {
			peer, key string
			status    int
		}{
			{"192.0.2.7:2", wrongKey, 429},
			{"192.0.2.7:3", wrongKey, 429},
			{"192.0.2.7:4", rightKey, 200},
			{"192.0.2.7:5", "", 401},
			{"192.0.2.8:1", wrongKey, 401},
		} {
			if got := status(c.peer, c.key); got != c.status {
				t.Errorf("%s with %q: status %d, want %d", c.peer, c.key, got, c.status)
			}
		}
		if n := strings.Count(r.log.String(), "wrong admin keys are throttled"); n != 1 {
			t.Errorf("%d lines about the throttle, want 1:\n%s", n, r.log)
		}
		// The first failure is a minute old now; the refused tries did not count.
		time.Sleep(10 * time.Second)
		if got := status("192.0.2.7:6", wrongKey); got != 401 {
			t.Errorf("after a minute: status %d, want 401", got)
		}
		if got := status("192.0.2.7:6", wrongKey); got != 429 {
			t.Errorf("and again: status %d, want 429", got)
		}
	})
}

func TestPeersOfOneIPv6NetworkAreOne(t *testing.T) {
	t.Parallel()
	th, now := newThrottle(), epoch
	for i := range maxFailures {
		if wait, _ := th.fail(netip.MustParseAddr(fmt.Sprintf("2001:db8:1:2::%d", i)), now); wait != 0 {
			t.Fatalf("failure %d is throttled", i)
		}
	}
	if wait, _ := th.fail(netip.MustParseAddr("2001:db8:1:2:ffff::1"), now); wait != failureWindow {
		t.Errorf("wait = %v, want %v", wait, failureWindow)
	}
	if wait, _ := th.fail(netip.MustParseAddr("2001:db8:1:3::1"), now); wait != 0 {
		t.Error("another network is throttled")
	}
}

func TestThrottleHasBoundedMemory(t *testing.T) {
	t.Parallel()
	th := newThrottle()
	peer := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for i := range maxPeers + 100 {
		th.fail(peer(i), epoch)
	}
	if n := len(th.peers); n > maxPeers+1 {
		t.Errorf("%d peers, want at most %d", n, maxPeers+1)
	}
	if wait, _ := th.fail(peer(maxPeers+200), epoch); wait == 0 {
		t.Error("the peers over the bound do not share one count")
	}
	later := epoch.Add(failureWindow)
	if wait, _ := th.fail(peer(maxPeers+300), later); wait != 0 {
		t.Error("a new peer is throttled after the others have aged")
	}
	if n := len(th.peers); n > 2 {
		t.Errorf("%d peers are left, want the new one", n)
	}
}

func TestAPageOfAnotherOriginIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.bury(gobridge.DeadLetter{})
	const all = `{"filter": {}, "confirm": true}`
	for _, headers := range [][]string{{"Origin", "https://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
		r.want(r.ask("POST", "/api/v1/admin/dlq/delete", all, headers...), 403, `{
  "error": "requests from the pages of another origin are refused"
}
`)
	}
	if r.depth() != 1 {
		t.Fatal("the dead letter is gone")
	}
	for _, headers := range [][]string{{"Origin", "http://localhost:8080"}, {"Sec-Fetch-Site", "same-origin"}} {
		if w := r.ask("POST", "/api/v1/admin/dlq/delete", all, headers...); w.Code != http.StatusOK {
			t.Errorf("own page: status %d", w.Code)
		}
	}
}
