package mqtt

// fifo is a queue in a slice. The zero value is empty. Not safe for concurrent
// use.
type fifo[T any] struct {
	items []T
	head  int
}

func (q *fifo[T]) len() int { return len(q.items) - q.head }

func (q *fifo[T]) push(v T) { q.items = append(q.items, v) }

// at returns the i-th item from the front, which may be changed in place.
func (q *fifo[T]) at(i int) *T { return &q.items[q.head+i] }

// pop removes the first item. The queue must not be empty.
func (q *fifo[T]) pop() T {
	v := q.items[q.head]
	q.drop(1)
	return v
}

// drop removes the first n items. The freed half of a long queue is used again.
func (q *fifo[T]) drop(n int) {
	clear(q.items[q.head : q.head+n])
	q.head += n
	switch {
	case q.head == len(q.items):
		q.items, q.head = q.items[:0], 0
		if cap(q.items) > keepItems {
			q.items = nil
		}
	case q.head >= keepItems && q.head > len(q.items)/2:
		kept := copy(q.items, q.items[q.head:])
		clear(q.items[kept:])
		q.items, q.head = q.items[:kept], 0
	}
}

// keepItems is the length up to which an empty queue keeps its memory.
const keepItems = 1024

// filter keeps the items for which keep says so, in order.
func (q *fifo[T]) filter(keep func(T) bool) {
	kept := q.items[:0]
	for _, v := range q.items[q.head:] {
		if keep(v) {
			kept = append(kept, v)
		}
	}
	clear(q.items[len(kept):])
	q.items, q.head = kept, 0
}
