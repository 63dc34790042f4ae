package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gobridge/gobridge"
)

// Key lets its holder use the admin API.
type Key struct {
	// Name is the actor in the log.
	Name string
	Key  gobridge.Secret
}

// loopbackActor is the actor of a bridge without keys.
const loopbackActor = "loopback"

// gate decides who may use the admin API: the holders of a key, or, when there are
// no keys, programs on this machine.
type gate struct {
	keys     []hashedKey
	throttle *throttle
	log      *slog.Logger
}

// hashedKey is kept instead of the key: comparing digests takes the same time
// whatever the lengths are.
type hashedKey struct {
	name string
	sum  [sha256.Size]byte
}

func newGate(keys []Key, log *slog.Logger) *gate {
	g := &gate{throttle: newThrottle(), log: log}
	for _, k := range keys {
		g.keys = append(g.keys, hashedKey{k.Name, sha256.Sum256([]byte(k.Key.Reveal()))})
	}
	return g
}

// admit returns the name of who asks, or writes the refusal. A valid key always
// passes, also from an address that is throttled.
func (g *gate) admit(w http.ResponseWriter, r *http.Request) (actor string, ok bool) {
	peer := peerOf(r)
	if len(g.keys) == 0 {
		if local(peer, r) {
			return loopbackActor, true
		}
		g.log.Warn("admin request refused", "peer", peer.String(), "path", r.URL.Path, "reason", "not from loopback, and there are no admin keys")
		writeJSON(w, http.StatusForbidden, Error{
			Error: "without keys, admin answers on loopback only",
			Hint:  "ask 127.0.0.1 from the same machine and not through a proxy, or set http.admin_keys",
		})
		return "", false
	}
	presented := presentedKey(r)
	if name, known := g.lookup(presented); known {
		return name, true
	}
	if presented == "" {
		g.refuse(w, "admin key missing")
		return "", false
	}
	wait, begins := g.throttle.fail(peer, time.Now())
	if wait == 0 {
		g.log.Warn("admin key refused", "peer", peer.String(), "path", r.URL.Path)
		g.refuse(w, "admin key not known")
		return "", false
	}
	if begins {
		g.log.Warn("wrong admin keys are throttled", "peer", peer.String(), "for", wait.String())
	}
	seconds := strconv.Itoa(int(math.Ceil(wait.Seconds())))
	w.Header().Set("Retry-After", seconds)
	writeJSON(w, http.StatusTooManyRequests, Error{
		Error: "too many wrong admin keys from this address",
		Hint:  "try again in " + seconds + " s; a right key is not affected",
	})
	return "", false
}

func (g *gate) refuse(w http.ResponseWriter, what string) {
	w.Header().Set("WWW-Authenticate", `Bearer realm="gobridge admin"`)
	writeJSON(w, http.StatusUnauthorized, Error{
		Error: what,
		Hint:  "send Authorization: Bearer KEY or X-API-Key: KEY with one of http.admin_keys",
	})
}

// lookup looks at every key, so that its time does not tell which one was near.
func (g *gate) lookup(presented string) (name string, known bool) {
	sum := sha256.Sum256([]byte(presented))
	for _, k := range g.keys {
		if subtle.ConstantTimeCompare(sum[:], k.sum[:]) == 1 {
			name, known = k.name, true
		}
	}
	return name, known && presented != ""
}

// presentedKey returns the key of a request. An Authorization header of another
// scheme belongs to a proxy in between.
func presentedKey(r *http.Request) string {
	scheme, key, found := strings.Cut(r.Header.Get("Authorization"), " ")
	if found && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(key)
	}
	return r.Header.Get("X-API-Key")
}

func peerOf(r *http.Request) netip.Addr {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap().WithZone("")
}

// local tells a program on this machine from what only looks like one: a proxy
// that forwards for others, and a web page whose host name was pointed at 127.0.0.1.
func local(peer netip.Addr, r *http.Request) bool {
	if !peer.IsLoopback() {
		return false
	}
	for _, forwarded := range [...]string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if r.Header.Get(forwarded) != "" {
			return false
		}
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && addr.Unmap().IsLoopback()
}

// The throttle of wrong keys.
const (
	maxFailures   = 5
	failureWindow = time.Minute
	// maxPeers bounds the memory of the throttle; the addresses over it share one
	// count.
	maxPeers = 10_000
)

// throttle counts wrong keys by peer address. IPv6 peers count by their /64, which
// is what one holder has.
type throttle struct {
	mu    sync.Mutex
	peers map[netip.Prefix]*failures
	swept time.Time
}

// failures are the latest wrong keys of one peer, oldest first.
type failures struct {
	at     []time.Time
	warned bool
}

func newThrottle() *throttle { return &throttle{peers: map[netip.Prefix]*failures{}} }

// fail counts a wrong key and returns 0, or how long the peer has to wait once it
// has used up its failures: those do not count. begins is true for the first of them.
func (t *throttle) fail(peer netip.Addr, now time.Time) (wait time.Duration, begins bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.of(peer, now)
	for len(f.at) > 0 && now.Sub(f.at[0]) >= failureWindow {
		f.at = f.at[1:]
	}
	if len(f.at) < maxFailures {
		f.at, f.warned = append(f.at, now), false
		return 0, false
	}
	begins = !f.warned
	f.warned = true
	return f.at[0].Add(failureWindow).Sub(now), begins
}

func (t *throttle) of(peer netip.Addr, now time.Time) *failures {
	bits := 32
	if peer.Is6() {
		bits = 64
	}
	// The prefix of a peer without an address is the zero one, as any other of its kind.
	key, _ := peer.Prefix(bits)
	if f := t.peers[key]; f != nil {
		return f
	}
	if len(t.peers) >= maxPeers {
		t.sweep(now)
	}
	if len(t.peers) >= maxPeers {
		key = netip.Prefix{}
		if f := t.peers[key]; f != nil {
			return f
		}
	}
	f := &failures{}
	t.peers[key] = f
	return f
}

// sweep forgets the peers whose failures have aged, at most once in a window: a
// flood of addresses must not make every request walk through all of them.
func (t *throttle) sweep(now time.Time) {
	if now.Sub(t.swept) < failureWindow {
		return
	}
	t.swept = now
	for k, f := range t.peers {
		if now.Sub(f.at[len(f.at)-1]) >= failureWindow {
			delete(t.peers, k)
		}
	}
}
