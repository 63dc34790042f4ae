package memory

import (
	"context"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"github.com/gobridge/gobridge"
)

// OutboxOptions are the options of an outbox in memory.
type OutboxOptions struct {
	Retention time.Duration `yaml:"retention" doc:"how long a completed message is remembered as evidence against duplicates" default:"1h"`
}

// OutboxKind is the kind "memory" of outboxes: nothing in it survives the process.
func OutboxKind() *gobridge.OutboxKind {
	return &gobridge.OutboxKind{
		Name:    "memory",
		Options: func() any { return gobridge.SetDefaults(new(OutboxOptions)) },
		Open: func(_ context.Context, _ *gobridge.BridgeSpec, s *gobridge.StoreSpec, _ gobridge.Env) (gobridge.Outbox, error) {
			o, ok := s.Options.(*OutboxOptions)
			if !ok {
				o = gobridge.SetDefaults(new(OutboxOptions))
			}
			return NewOutboxStore(o.Retention).Open(), nil
		},
	}
}

// maxDone bounds the evidence of a store.
const maxDone = 1_000_000

// OutboxStore holds the records. Handles are opened on it, each of which raises the
// fence: what a file is to a durable store.
type OutboxStore struct {
	retention time.Duration

	mu         sync.Mutex
	fence      int
	seq        uint64
	partitions map[string][]gobridge.OutboxRecord // by Seq
	known      map[outboxKey]uint32               // checksums of payloads
	done       []evidence                         // oldest first
}

// outboxKey is the dedup key of a record.
type outboxKey struct {
	binding, id string
	generation  int
}

// evidence is a completed record that must not come again.
type evidence struct {
	key outboxKey
	at  time.Time
}

// NewOutboxStore returns an empty store that remembers completed records for the
// retention.
func NewOutboxStore(retention time.Duration) *OutboxStore {
	return &OutboxStore{
		retention: retention, partitions: map[string][]gobridge.OutboxRecord{}, known: map[outboxKey]uint32{},
	}
}

// Open returns a new handle, from now on the only one that may change records.
func (s *OutboxStore) Open() *Outbox {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fence++
	o := &Outbox{store: s, fence: s.fence, stopped: make(chan struct{})}
	o.wake.L = &o.mu
	go o.run()
	return o
}

// Outbox is a handle on an outbox in memory. One goroutine makes the changes, in
// the order of the calls, and reports them.
type Outbox struct {
	store   *OutboxStore
	fence   int
	stopped chan struct{}

	mu     sync.Mutex
	wake   sync.Cond
	queue  []func()
	closed bool
}

var _ gobridge.Outbox = (*Outbox)(nil)

func (o *Outbox) run() {
	defer close(o.stopped)
	for {
		o.mu.Lock()
		for len(o.queue) == 0 && !o.closed {
			o.wake.Wait()
		}
		work := o.queue
		o.queue = nil
		o.mu.Unlock()
		if len(work) == 0 {
			return
		}
		for _, f := range work {
			f()
		}
	}
}

// submit queues one change of all records.
func (o *Outbox) submit(records []*gobridge.OutboxRecord, done gobridge.OutboxDone, change func(s *OutboxStore, r *gobridge.OutboxRecord)) {
	job := func() {
		err := o.store.apply(o.fence, func() {
			for _, r := range records {
				change(o.store, r)
			}
		})
		done.OutboxDone(records, err)
	}
	o.mu.Lock()
	closed := o.closed
	if !closed {
		o.queue = append(o.queue, job)
	}
	o.mu.Unlock()
	if closed {
		done.OutboxDone(records, gobridge.ErrClosed)
		return
	}
	o.wake.Signal()
}

func (s *OutboxStore) apply(fence int, change func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fence != s.fence {
		return gobridge.ErrStaleFence
	}
	change()
	return nil
}

// Persist implements gobridge.Outbox.
func (o *Outbox) Persist(records []*gobridge.OutboxRecord, done gobridge.OutboxDone) {
	o.submit(records, done, (*OutboxStore).persist)
}

// Complete implements gobridge.Outbox.
func (o *Outbox) Complete(records []*gobridge.OutboxRecord, done gobridge.OutboxDone) {
	o.submit(records, done, (*OutboxStore).complete)
}

// Charge implements gobridge.Outbox.
func (o *Outbox) Charge(records []*gobridge.OutboxRecord, done gobridge.OutboxDone) {
	o.submit(records, done, (*OutboxStore).charge)
}

// keyed tells whether a record of the same key can come again: an id that the bridge
// made up for one receipt cannot.
func keyed(r *gobridge.OutboxRecord) bool {
	return r.Envelope.IDOrigin == gobridge.IDProducer || r.Generation > 0
}

func keyOf(r *gobridge.OutboxRecord) outboxKey {
	return outboxKey{r.BindingID, r.Envelope.ID, r.Generation}
}

func (s *OutboxStore) persist(r *gobridge.OutboxRecord) {
	s.forget(time.Now())
	r.Seq, r.Duplicate, r.Conflict = 0, false, false
	if keyed(r) {
		sum := crc32.ChecksumIEEE(r.Envelope.Payload)
		if other, found := s.known[keyOf(r)]; found {
			r.Duplicate, r.Conflict = true, other != sum
			return
		}
		s.known[keyOf(r)] = sum
	}
	s.seq++
	r.Seq, r.PersistedAt = s.seq, time.Now()
	kept := *r
	kept.Ref = nil
	s.partitions[r.BindingID] = append(s.partitions[r.BindingID], kept)
}

func (s *OutboxStore) complete(r *gobridge.OutboxRecord) {
	p := s.partitions[r.BindingID]
	i, found := find(p, r.Seq)
	if !found {
		return
	}
	if i == 0 {
		p[0] = gobridge.OutboxRecord{} // frees the payload
		s.partitions[r.BindingID] = p[1:]
	} else {
		s.partitions[r.BindingID] = slices.Delete(p, i, i+1)
	}
	if keyed(r) {
		s.done = append(s.done, evidence{keyOf(r), time.Now()})
	}
}

func (s *OutboxStore) charge(r *gobridge.OutboxRecord) {
	p := s.partitions[r.BindingID]
	if i, found := find(p, r.Seq); found {
		p[i].ReplayCount, p[i].FirstAttemptAt = r.ReplayCount, r.FirstAttemptAt
	}
}

// forget drops evidence that outlived the retention or is over the bound.
func (s *OutboxStore) forget(now time.Time) {
	n := 0
	for n < len(s.done) && (len(s.done)-n > maxDone || now.Sub(s.done[n].at) > s.retention) {
		delete(s.known, s.done[n].key)
		n++
	}
	s.done = s.done[n:]
}

func find(p []gobridge.OutboxRecord, seq uint64) (int, bool) {
	return slices.BinarySearchFunc(p, seq, func(r gobridge.OutboxRecord, seq uint64) int {
		switch {
		case r.Seq < seq:
			return -1
		case r.Seq > seq:
			return 1
		}
		return 0
	})
}

// Pending implements gobridge.Outbox.
func (o *Outbox) Pending(ctx context.Context, bindingID string, after uint64, limit int, maxBytes int64) ([]*gobridge.OutboxRecord, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s := o.store
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.partitions[bindingID]
	i, found := find(p, after)
	if found {
		i++
	}
	var page []*gobridge.OutboxRecord
	size := int64(0)
	for ; i < len(p) && len(page) < limit; i++ {
		size += int64(len(p[i].Envelope.Payload))
		if len(page) > 0 && size > maxBytes {
			break
		}
		r := p[i]
		page = append(page, &r)
	}
	return page, nil
}

// Depth implements gobridge.Outbox.
func (o *Outbox) Depth(bindingID string) int {
	o.store.mu.Lock()
	defer o.store.mu.Unlock()
	return len(o.store.partitions[bindingID])
}

// Partitions implements gobridge.Outbox.
func (o *Outbox) Partitions(context.Context) ([]string, error) {
	o.store.mu.Lock()
	defer o.store.mu.Unlock()
	var names []string
	for name, p := range o.store.partitions {
		if len(p) > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Err implements gobridge.Outbox: memory takes every write.
func (o *Outbox) Err() error { return nil }

// Close implements gobridge.Outbox: it waits for the changes given to it.
func (o *Outbox) Close() error {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.wake.Signal()
	<-o.stopped
	return nil
}
