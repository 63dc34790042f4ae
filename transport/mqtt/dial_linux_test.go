package mqtt

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// resolve makes every name stand for these IPv4 addresses until the end of the test,
// which must not be parallel.
func resolve(t *testing.T, addresses ...net.IP) {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		query := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(query)
			if err != nil {
				return
			}
			if n > 17 {
				server.WriteTo(answer(query[:n], addresses), from)
			}
		}
	}()
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
	t.Cleanup(func() {
		net.DefaultResolver = before
		server.Close()
		<-done
	})
}

// answer is the DNS response (RFC 1035, 4) to a query with one question.
func answer(query []byte, addresses []net.IP) []byte {
	end := 12
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5 // the root label, type and class
	const typeA = 1
	if binary.BigEndian.Uint16(query[end-4:]) != typeA {
		addresses = nil
	}
	reply := append([]byte{}, query[:2]...)
	reply = append(reply, 0x81, 0x80, 0, 1, 0, byte(len(addresses)), 0, 0, 0, 0)
	reply = append(reply, query[12:end]...)
	for _, ip := range addresses {
		reply = append(reply, 0xC0, 12, 0, typeA, 0, 1, 0, 0, 0, 0, 0, 4)
		reply = append(reply, ip.To4()...)
	}
	return reply
}

// blackHole listens on 127.0.0.2 and lets nobody in: its queue is full.
func blackHole(t *testing.T, port int) {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 2}, Port: port}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		nc, err := net.DialTimeout("tcp", net.JoinHostPort("127.0.0.2", strconv.Itoa(port)), 200*time.Millisecond)
		if err != nil {
			return
		}
		t.Cleanup(func() { nc.Close() })
	}
	t.Fatal("the queue of a listener does not fill up")
}

// Each attempt asks for the addresses anew and tries them all; one that swallows what
// comes does not use up the time.
func TestDialTriesEveryAddressOfAName(t *testing.T) {
	good := serve(t, nil, func(nc net.Conn) { io.WriteString(nc, "x") })
	_, text, _ := net.SplitHostPort(good)
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	u := mustURL(t, "tcp://broker.example.com:"+text)
	reach := func(timeout time.Duration) time.Duration {
		t.Helper()
		began := time.Now()
		nc, err := dial(t.Context(), u, nil, timeout)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := nc.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	here, there := net.IPv4(127, 0, 0, 1), net.IPv4(127, 0, 0, 2)
	resolve(t, there, here)
	if took := reach(testDialTimeout); took > 3*time.Second {
		t.Errorf("%v with an address that refuses", took)
	}
	blackHole(t, port)
	const timeout = 5 * time.Second
	took := reach(timeout)
	if took > timeout-time.Second {
		t.Errorf("%v of %v with an address that answers nothing", took, timeout)
	}
	if took < time.Second {
		t.Errorf("%v: the address that answers nothing was not tried", took)
	}
	resolve(t, here) // the name has moved
	if took := reach(testDialTimeout); took > 3*time.Second {
		t.Errorf("%v after the name has moved", took)
	}
}
