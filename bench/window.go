package main

import "sync"

// window counts how many QoS 1 messages may still be sent before one is
// acknowledged: the peer's Receive Maximum. It is safe for concurrent use.
type window struct {
	mu      sync.Mutex
	changed *sync.Cond
	size    int
	free    int
	err     error
}

func newWindow(size int) *window {
	w := &window{size: size, free: size}
	w.changed = sync.NewCond(&w.mu)
	return w
}

// acquire waits for room and takes up to limit messages of it.
func (w *window) acquire(limit int) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.free == 0 && w.err == nil {
		w.changed.Wait()
	}
	if w.err != nil {
		return 0, w.err
	}
	n := min(w.free, limit)
	w.free -= n
	return n, nil
}

// release gives back the room of n acknowledged messages.
func (w *window) release(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.free += n
	w.changed.Broadcast()
}

// drained waits until everything sent was acknowledged.
func (w *window) drained() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.free < w.size && w.err == nil {
		w.changed.Wait()
	}
	return w.err
}

// fail ends all waiting, now and later, with err.
func (w *window) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.changed.Broadcast()
}
