package chaos

import (
	"bufio"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/eclipse/paho.golang/packets"
)

// tooLarge is the reason code Packet too large.
const tooLarge = 0x95

// relay stands in front of a destination and changes one answer: mosquitto refuses
// what is over its size limit for good, and no broker setting makes a refusal that may
// pass. The relay turns it into one.
type relay struct {
	ln     net.Listener
	target string
	wg     sync.WaitGroup

	mu    sync.Mutex
	open  map[net.Conn]bool
	ended bool
}

func startRelay(t *testing.T, target string) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for the relay: %v", err)
	}
	r := &relay{ln: ln, target: target, open: map[net.Conn]bool{}}
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		r.mu.Lock()
		r.ended = true
		for c := range r.open {
			_ = c.Close()
		}
		r.mu.Unlock()
		r.wg.Wait()
	})
	return r
}

func (r *relay) accept() {
	for {
		client, err := r.ln.Accept()
		if err != nil {
			return // closed in the Cleanup
		}
		r.wg.Go(func() { r.serve(client) })
	}
}

func (r *relay) serve(client net.Conn) {
	defer client.Close()
	broker, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer broker.Close()
	if !r.keep(client, broker) {
		return
	}
	defer r.forget(client, broker)
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(broker, client)
		_ = broker.Close()
		_ = client.Close()
	})
	_ = answers(client, bufio.NewReader(broker))
	_ = client.Close()
	_ = broker.Close()
	up.Wait()
}

// keep notes connections for the Cleanup. It is false once that has begun.
func (r *relay) keep(all ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range all {
		r.open[c] = true
	}
	return !r.ended
}

func (r *relay) forget(all ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range all {
		delete(r.open, c)
	}
}

// answers copies what a broker sends, packet by packet.
func answers(to io.Writer, from *bufio.Reader) error {
	for {
		head := make([]byte, 0, 5)
		length, shift := 0, 0
		for len(head) < 2 || head[len(head)-1]&0x80 != 0 {
			b, err := from.ReadByte()
			if err != nil {
				return err
			}
			if head = append(head, b); len(head) > 1 {
				length |= int(b&0x7f) << shift
				shift += 7
			}
		}
		packet := append(head, make([]byte, length)...)
		if _, err := io.ReadFull(from, packet[len(head):]); err != nil {
			return err
		}
		if kind := packet[0] >> 4; (kind == packets.PUBACK || kind == packets.PUBREC) && length > 2 && packet[len(head)+2] == tooLarge {
			packet[len(head)+2] = packets.PubackImplementationSpecificError
		}
		if _, err := to.Write(packet); err != nil {
			return err
		}
	}
}
