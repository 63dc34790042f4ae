package bridgetest

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Direction is a way through a [Proxy].
type Direction int

// The two directions.
const (
	ToTarget Direction = iota // from the client that dialled the proxy
	ToClient
)

// Proxy is a TCP relay with faults. Settings act at once, on live connections and on
// later ones, and may be changed from any goroutine.
type Proxy struct {
	t  testing.TB
	ln net.Listener
	wg sync.WaitGroup

	refuse   atomic.Bool
	stall    atomic.Bool
	swallow  [2]atomic.Bool
	delay    atomic.Int64 // nanoseconds
	rate     atomic.Int64 // bytes a second, 0 = no limit
	accepted atomic.Int64
	bytes    [2]atomic.Int64
	cutAfter [2]atomic.Int64 // bytes until a cut, 0 = none

	mu      sync.Mutex
	target  string
	links   map[*link]bool
	changed chan struct{} // closed and replaced when a setting changed
}

// link is one connection and the connection to the target that belongs to it.
type link struct {
	conns     [2]*net.TCPConn // indexed by the direction that is written to it: target, client
	done      chan struct{}
	end       sync.Once
	swallowed atomic.Bool
}

// NewProxy starts a proxy in front of target (host:port); the target is dialled for
// each connection. It is closed in the Cleanup.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for the proxy: %v", err)
	}
	p := &Proxy{t: t, ln: ln, target: target, links: make(map[*link]bool), changed: make(chan struct{})}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		p.refuse.Store(true) // what is just being accepted
		p.Cut()
		p.wg.Wait()
	})
	return p
}

// Addr returns host:port of the proxy.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// URL returns the proxy as a tcp:// URL.
func (p *Proxy) URL() string { return "tcp://" + p.Addr() }

// SetTarget changes where later connections go.
func (p *Proxy) SetTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Cut resets all live connections on both sides (RST) and returns how many there
// were. What was on its way is lost.
func (p *Proxy) Cut() int { return p.cut(func(*link) bool { return true }) }

func (p *Proxy) cut(which func(*link) bool) int {
	p.mu.Lock()
	var cut []*link
	for l := range p.links {
		if which(l) {
			cut = append(cut, l)
		}
	}
	p.mu.Unlock()
	for _, l := range cut {
		l.reset()
	}
	return len(cut)
}

// CutAfter resets, once, the connection that carries the n-th byte from now in
// direction d, right after that byte: in the middle of a packet, for instance.
func (p *Proxy) CutAfter(d Direction, n int) { p.cutAfter[d].Store(int64(n)) }

// BlackHole swallows what both sides send, without closing anything; new
// connections are accepted. Turning it off resets the connections that lost bytes,
// since their streams cannot go on.
func (p *Proxy) BlackHole(on bool) {
	p.blackHole(on, ToTarget, ToClient)
}

// BlackHoleOneWay is BlackHole for what goes in one direction.
func (p *Proxy) BlackHoleOneWay(d Direction, on bool) { p.blackHole(on, d) }

func (p *Proxy) blackHole(on bool, directions ...Direction) {
	for _, d := range directions {
		p.swallow[d].Store(on)
	}
	if !on {
		p.cut(func(l *link) bool { return l.swallowed.Load() })
	}
}

// Stall stops relaying while on and loses nothing: the senders' buffers fill, and all
// of it arrives afterwards.
func (p *Proxy) Stall(on bool) { p.stall.Store(on); p.wake() }

// Refuse resets new connections at once; live ones stay.
func (p *Proxy) Refuse(on bool) { p.refuse.Store(on) }

// Delay holds what passes for d in each direction, without limiting the rate.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)); p.wake() }

// Throttle limits each direction of each connection; 0 lifts the limit.
func (p *Proxy) Throttle(bytesPerSecond int) { p.rate.Store(int64(bytesPerSecond)); p.wake() }

// Connections returns the number of live connections.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Accepted returns the number of connections accepted so far, refused ones included.
func (p *Proxy) Accepted() int { return int(p.accepted.Load()) }

// Bytes returns the number of bytes relayed in one direction so far.
func (p *Proxy) Bytes(d Direction) int64 { return p.bytes[d].Load() }

// wake lets waiting relays look at the settings again.
func (p *Proxy) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Proxy) accept() {
	for {
		conn, err := p.ln.Accept()
		if err != nil {
			return // closed in the Cleanup
		}
		p.accepted.Add(1)
		client := conn.(*net.TCPConn)
		if p.refuse.Load() {
			_ = reset(client)
			continue
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

func (p *Proxy) serve(client *net.TCPConn) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	upstream, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		_ = reset(client)
		return
	}
	l := &link{conns: [2]*net.TCPConn{ToTarget: upstream.(*net.TCPConn), ToClient: client}, done: make(chan struct{})}
	p.mu.Lock()
	p.links[l] = true
	p.mu.Unlock()
	if p.refuse.Load() { // set while dialling
		l.reset()
	}
	var relays sync.WaitGroup
	for _, d := range []Direction{ToTarget, ToClient} {
		chunks := make(chan chunk, 64)
		relays.Go(func() { p.receive(l, d, chunks) })
		relays.Go(func() { p.forward(l, d, chunks) })
	}
	relays.Wait()
	l.close((*net.TCPConn).Close)
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// chunk is some bytes and when they came.
type chunk struct {
	data []byte
	at   time.Time
}

// receive reads what goes in direction d until the sender closes; a reset by one side
// resets the other.
func (p *Proxy) receive(l *link, d Direction, chunks chan<- chunk) {
	defer close(chunks)
	from := l.conns[1-d]
	for {
		buf := make([]byte, 16<<10)
		n, err := from.Read(buf)
		if n > 0 {
			select {
			case chunks <- chunk{buf[:n], time.Now()}:
			case <-l.done:
				return
			}
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			l.reset()
			return
		}
	}
}

// forward writes what receive read, with the faults of the moment. It passes an
// orderly close on.
func (p *Proxy) forward(l *link, d Direction, chunks <-chan chunk) {
	for c := range chunks {
		if !p.hold(l, c.at) {
			return
		}
		if p.swallow[d].Load() {
			l.swallowed.Store(true)
			continue
		}
		if l.swallowed.Load() && !p.swallow[1-d].Load() {
			l.reset() // the black hole ended while this chunk was held
			return
		}
		for data := c.data; len(data) > 0; {
			n, rate := len(data), p.rate.Load()
			if rate > 0 {
				n = min(n, max(1, int(rate/20)))
			}
			left := p.cutAfter[d].Load()
			if left > 0 {
				n = min(n, int(left))
			}
			if _, err := l.conns[d].Write(data[:n]); err != nil {
				l.reset()
				return
			}
			p.bytes[d].Add(int64(n))
			data = data[n:]
			if left > 0 && p.cutAfter[d].Add(int64(-n)) == 0 {
				l.reset()
				return
			}
			if rate > 0 && !l.sleep(time.Duration(n)*time.Second/time.Duration(rate)) {
				return
			}
		}
	}
	_ = l.conns[d].CloseWrite()
}

// hold waits while the proxy stalls and until the delay is over. It is false when the
// link ended meanwhile.
func (p *Proxy) hold(l *link, at time.Time) bool {
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		wait := time.Until(at.Add(time.Duration(p.delay.Load())))
		if p.stall.Load() {
			wait = time.Hour
		}
		if wait <= 0 {
			return true
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-changed:
		case <-l.done:
		}
		timer.Stop()
		select {
		case <-l.done:
			return false
		default:
		}
	}
}

// sleep is false when the link ended meanwhile.
func (l *link) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-l.done:
		return false
	}
}

// reset ends both sides with RST.
func (l *link) reset() { l.close(reset) }

// close ends both sides, once.
func (l *link) close(each func(*net.TCPConn) error) {
	l.end.Do(func() {
		close(l.done)
		for _, c := range l.conns {
			_ = each(c)
		}
	})
}

// reset closes a connection with RST instead of FIN.
func reset(c *net.TCPConn) error {
	_ = c.SetLinger(0)
	return c.Close()
}
