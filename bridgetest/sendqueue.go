package bridgetest

import (
	"bytes"
	"io"
	"net"
	"sync"
)

// sendQueue collects encoded packets and writes them from one goroutine (run), so
// that a peer which stops reading blocks only that goroutine, and packets queued
// while a write is under way leave together in the next one.
type sendQueue struct {
	conn  net.Conn
	ended chan struct{} // closed when run has returned

	mu      sync.Mutex
	changed *sync.Cond // queued, room, closing, err
	queued  *bytes.Buffer
	writing *bytes.Buffer // owned by run
	closing bool
	err     error
}

func newSendQueue(conn net.Conn) *sendQueue {
	q := &sendQueue{conn: conn, ended: make(chan struct{}), queued: new(bytes.Buffer), writing: new(bytes.Buffer)}
	q.changed = sync.NewCond(&q.mu)
	return q
}

// put queues one packet and never blocks. It returns the error that ended the queue.
func (q *sendQueue) put(p io.WriterTo) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return q.err
	}
	if q.closing {
		return net.ErrClosed
	}
	if q.queued.Len() == 0 {
		q.changed.Broadcast()
	}
	_, err := p.WriteTo(q.queued)
	return err
}

// waitRoom blocks while more than limit bytes are queued.
func (q *sendQueue) waitRoom(limit int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.queued.Len() > limit && q.err == nil && !q.closing {
		q.changed.Wait()
	}
	return q.err
}

// close lets run write what is queued and then close the connection.
func (q *sendQueue) close() {
	q.mu.Lock()
	q.closing = true
	q.mu.Unlock()
	q.changed.Broadcast()
}

// fail ends the queue at once; what is queued is dropped.
func (q *sendQueue) fail(err error) {
	q.mu.Lock()
	if q.err == nil {
		q.err = err
	}
	q.mu.Unlock()
	q.changed.Broadcast()
	_ = q.conn.Close()
}

// run writes until close or fail. It closes the connection before it returns.
func (q *sendQueue) run() {
	defer close(q.ended)
	for {
		q.mu.Lock()
		for q.queued.Len() == 0 && !q.closing && q.err == nil {
			q.changed.Wait()
		}
		if q.err != nil || q.queued.Len() == 0 {
			q.mu.Unlock()
			_ = q.conn.Close()
			return
		}
		q.queued, q.writing = q.writing, q.queued
		q.mu.Unlock()

		_, err := q.conn.Write(q.writing.Bytes())
		q.writing.Reset()
		if err != nil {
			q.fail(err)
			continue
		}
		q.changed.Broadcast()
	}
}

// rawPacket is bytes that are sent as they are.
type rawPacket []byte

// WriteTo implements io.WriterTo.
func (p rawPacket) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(p)
	return int64(n), err
}
