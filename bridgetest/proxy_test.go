package bridgetest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

// echo is a TCP server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		wg.Wait()
	})
	return ln.Addr().String()
}

func dialProxy(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// say sends text and returns the answer, or the error of waiting for it.
func say(conn net.Conn, text string, wait time.Duration) (string, error) {
	if _, err := conn.Write([]byte(text)); err != nil {
		return "", err
	}
	return hear(conn, len(text), wait)
}

func hear(conn net.Conn, n int, wait time.Duration) (string, error) {
	_ = conn.SetReadDeadline(time.Now().Add(wait))
	buf := make([]byte, n)
	_, err := io.ReadFull(conn, buf)
	return string(buf), err
}

// tryProxy returns the error of a connection that may be reset at any step.
func tryProxy(p *Proxy) error {
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = say(conn, "x", 5*time.Second)
	return err
}

func timedOut(err error) bool {
	netErr, ok := errors.AsType[net.Error](err)
	return ok && netErr.Timeout()
}

func TestProxyRelaysAndCounts(t *testing.T) {
	p := NewProxy(t, echo(t))
	conn := dialProxy(t, p)
	if got, err := say(conn, "hello", 5*time.Second); got != "hello" || err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	// The client may read the answer before the relay has counted it.
	for until := time.Now().Add(5 * time.Second); p.Bytes(ToClient) != 5 && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	if p.Connections() != 1 || p.Accepted() != 1 || p.Bytes(ToTarget) != 5 || p.Bytes(ToClient) != 5 {
		t.Errorf("connections %d, accepted %d, bytes %d and %d", p.Connections(), p.Accepted(), p.Bytes(ToTarget), p.Bytes(ToClient))
	}
	_ = conn.(*net.TCPConn).CloseWrite()
	if _, err := hear(conn, 1, 5*time.Second); !errors.Is(err, io.EOF) {
		t.Errorf("after a half close: %v, want EOF", err)
	}
}

func TestProxyLosesNothingOfALargeTransferThatEndsWithClose(t *testing.T) {
	p := NewProxy(t, echo(t))
	conn := dialProxy(t, p)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = conn.Write(data)
		_ = conn.(*net.TCPConn).CloseWrite()
	})
	got, err := io.ReadAll(conn)
	wg.Wait()
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("got %d of %d bytes, %v", len(got), len(data), err)
	}
}

func TestProxyCutResetsBothSides(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	p := NewProxy(t, ln.Addr().String())
	client := dialProxy(t, p)
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if _, err := client.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := hear(server, 1, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if n := p.Cut(); n != 1 {
		t.Errorf("cut %d connections, want 1", n)
	}
	for name, conn := range map[string]net.Conn{"client": client, "server": server} {
		if _, err := hear(conn, 1, 5*time.Second); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v, want a reset", name, err)
		}
	}
}

func TestProxyCutsInTheMiddle(t *testing.T) {
	p := NewProxy(t, echo(t))
	conn := dialProxy(t, p)
	p.CutAfter(ToClient, 8)
	if got, err := say(conn, "12345", 5*time.Second); got != "12345" || err != nil {
		t.Fatalf("before the cut: %q, %v", got, err)
	}
	got, err := say(conn, "67890", 5*time.Second)
	if got[:3] != "678" || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("at the cut: %q, %v; want 678 and a reset", got, err)
	}
	if got, err := say(dialProxy(t, p), "1234567890", 5*time.Second); err != nil {
		t.Errorf("the next connection: %q, %v", got, err)
	}
}

func TestProxyBlackHoleSwallowsAndEndsWithAReset(t *testing.T) {
	p := NewProxy(t, echo(t))
	conn, idle := dialProxy(t, p), dialProxy(t, p)
	if _, err := say(idle, "a", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	p.BlackHole(true)
	if _, err := say(conn, "lost", 100*time.Millisecond); !timedOut(err) {
		t.Errorf("through the black hole: %v, want silence", err)
	}
	if _, err := say(dialProxy(t, p), "lost", 100*time.Millisecond); !timedOut(err) {
		t.Errorf("new connection: %v, want silence", err)
	}
	p.BlackHole(false)
	if _, err := hear(conn, 1, 5*time.Second); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection that lost bytes: %v, want a reset", err)
	}
	if got, err := say(idle, "b", 5*time.Second); got != "b" || err != nil {
		t.Errorf("a connection that lost nothing: %q, %v", got, err)
	}
}

func TestProxyBlackHoleOneWayLetsTheOtherWayPass(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	p := NewProxy(t, ln.Addr().String())
	client := dialProxy(t, p)
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	p.BlackHoleOneWay(ToClient, true)
	if _, err := client.Write([]byte("up")); err != nil {
		t.Fatal(err)
	}
	if got, err := hear(server, 2, 5*time.Second); got != "up" || err != nil {
		t.Errorf("to the target: %q, %v", got, err)
	}
	if _, err := server.Write([]byte("down")); err != nil {
		t.Fatal(err)
	}
	if _, err := hear(client, 1, 100*time.Millisecond); !timedOut(err) {
		t.Errorf("to the client: %v, want silence", err)
	}
}

func TestProxyStallLosesNothing(t *testing.T) {
	p := NewProxy(t, echo(t))
	conn := dialProxy(t, p)
	p.Stall(true)
	if _, err := say(conn, "later", 100*time.Millisecond); !timedOut(err) {
		t.Errorf("stalled: %v, want silence", err)
	}
	p.Stall(false)
	if got, err := hear(conn, 5, 5*time.Second); got != "later" || err != nil {
		t.Errorf("after the stall: %q, %v", got, err)
	}
}

func TestProxyRefusesNewConnectionsOnly(t *testing.T) {
	p := NewProxy(t, echo(t))
	live := dialProxy(t, p)
	if _, err := say(live, "a", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	p.Refuse(true)
	if err := tryProxy(p); err == nil || timedOut(err) {
		t.Errorf("new connection: %v, want a reset", err)
	}
	if got, err := say(live, "b", 5*time.Second); got != "b" || err != nil {
		t.Errorf("live connection: %q, %v", got, err)
	}
	p.Refuse(false)
	if got, err := say(dialProxy(t, p), "c", 5*time.Second); got != "c" || err != nil {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}

func TestProxyDelaysWithoutLimitingTheRate(t *testing.T) {
	p := NewProxy(t, echo(t))
	conn := dialProxy(t, p)
	p.Delay(50 * time.Millisecond)
	start := time.Now()
	for range 20 {
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // several chunks on the way at a time
	}
	if _, err := hear(conn, 20, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 100*time.Millisecond || took > time.Second {
		t.Errorf("20 chunks with 50 ms each way took %v, want 100 ms and a little", took)
	}
}

func TestProxyThrottlesToTheRate(t *testing.T) {
	p := NewProxy(t, echo(t))
	conn := dialProxy(t, p)
	p.Throttle(100_000)
	start := time.Now()
	if _, err := say(conn, string(make([]byte, 30_000)), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 250*time.Millisecond {
		t.Errorf("30,000 bytes at 100,000 bytes/s took %v, want at least 250 ms", took)
	}
}

func TestProxyFollowsItsTarget(t *testing.T) {
	p := NewProxy(t, "127.0.0.1:1") // nobody there
	if err := tryProxy(p); err == nil || timedOut(err) {
		t.Errorf("without a target: %v, want a reset", err)
	}
	p.SetTarget(echo(t))
	if got, err := say(dialProxy(t, p), "x", 5*time.Second); got != "x" || err != nil {
		t.Errorf("with a target: %q, %v", got, err)
	}
}
