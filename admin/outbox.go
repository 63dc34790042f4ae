package admin

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gobridge/gobridge"
)

// OutboxStatus is the answer to a look at the outbox.
type OutboxStatus struct {
	// Depth counts all records that are not completed; OldestAgeMS is the age of the
	// oldest, 0 without one.
	Depth       int   `json:"depth"`
	OldestAgeMS int64 `json:"oldest_age_ms"`
	// Error is why the store takes no writes at the moment.
	Error      string            `json:"error"`
	Partitions []OutboxPartition `json:"partitions"`
	Records    []OutboxRecord    `json:"records"`
	// Next is the cursor of the next page of records, empty on the last one.
	Next string `json:"next"`
}

// OutboxPartition is what waits for one binding.
type OutboxPartition struct {
	RouteID     string `json:"route_id"`
	BindingID   string `json:"binding_id"`
	Depth       int    `json:"depth"`
	OldestAgeMS int64  `json:"oldest_age_ms"`
}

// OutboxRecord is one waiting message, without its payload.
type OutboxRecord struct {
	Seq            uint64     `json:"seq"`
	RouteID        string     `json:"route_id"`
	BindingID      string     `json:"binding_id"`
	MessageID      string     `json:"message_id"`
	Generation     int        `json:"generation"`
	Topic          string     `json:"topic"`
	Address        string     `json:"address"`
	PayloadBytes   int        `json:"payload_bytes"`
	PersistedAt    time.Time  `json:"persisted_at"`
	ReplayCount    int        `json:"replay_count"`
	FirstAttemptAt *time.Time `json:"first_attempt_at"`
	ExpiresAt      *time.Time `json:"expires_at"`
}

func (a *API) listOutbox(c *call) error {
	c.quiet = true
	if err := c.known("route_id", "binding_id", "limit", "cursor"); err != nil {
		return err
	}
	query := c.URL.Query()
	limit, err := number(query.Get("limit"), 0, defaultLimit)
	if err != nil {
		return err
	}
	after, err := parseOutboxCursor(query.Get("cursor"))
	if err != nil {
		return err
	}
	outbox := a.op.Outbox()
	if outbox == nil {
		return &failure{http.StatusNotFound, Error{"the bridge has no outbox", "no route has delivery_mode: shared_outbox"}}
	}
	s, err := outboxStatus(c.Context(), outbox, query.Get("route_id"), query.Get("binding_id"))
	if err != nil {
		return err
	}
	if err := s.page(c.Context(), outbox, after, limit); err != nil {
		return err
	}
	return c.answer(http.StatusOK, s)
}

// outboxStatus looks at the partitions of a route and a binding; empty ids select
// all.
func outboxStatus(ctx context.Context, outbox gobridge.Outbox, route, binding string) (*OutboxStatus, error) {
	s := &OutboxStatus{Partitions: []OutboxPartition{}, Records: []OutboxRecord{}}
	if err := outbox.Err(); err != nil {
		s.Error = err.Error()
	}
	bindings, err := outbox.Partitions(ctx)
	if err != nil {
		return nil, err
	}
	slices.Sort(bindings)
	for _, id := range bindings {
		if binding != "" && id != binding {
			continue
		}
		first, err := outbox.Pending(ctx, id, 0, 1, 0)
		if err != nil {
			return nil, err
		}
		// The last record may have gone since Partitions, or nothing is readable.
		p := OutboxPartition{BindingID: id, Depth: outbox.Depth(id)}
		if len(first) > 0 {
			p.RouteID = first[0].RouteID
			p.OldestAgeMS = max(time.Since(first[0].PersistedAt).Milliseconds(), 0)
		}
		if p.Depth == 0 || route != "" && p.RouteID != route {
			continue
		}
		s.Depth += p.Depth
		s.OldestAgeMS = max(s.OldestAgeMS, p.OldestAgeMS)
		s.Partitions = append(s.Partitions, p)
	}
	return s, nil
}

// outboxCursor names a record: the pages go binding by binding, in the order of
// their ids, oldest record first.
type outboxCursor struct {
	binding string
	seq     uint64
}

func (c outboxCursor) String() string { return strconv.FormatUint(c.seq, 10) + ":" + c.binding }

func parseOutboxCursor(text string) (outboxCursor, error) {
	if text == "" {
		return outboxCursor{}, nil
	}
	number, binding, found := strings.Cut(text, ":")
	seq, err := strconv.ParseUint(number, 10, 64)
	if !found || err != nil {
		return outboxCursor{}, badRequest("take the next of an answer", "cursor is none of the outbox")
	}
	return outboxCursor{binding, seq}, nil
}

// page adds up to limit records that follow the cursor.
func (s *OutboxStatus) page(ctx context.Context, outbox gobridge.Outbox, after outboxCursor, limit int) error {
	if limit == 0 {
		return nil
	}
	for _, p := range s.Partitions {
		seq := uint64(0)
		switch cmp.Compare(p.BindingID, after.binding) {
		case -1:
			continue
		case 0:
			seq = after.seq
		}
		for {
			// One more than asked for tells whether there is a next page.
			records, err := outbox.Pending(ctx, p.BindingID, seq, limit+1-len(s.Records), pageBytes)
			if err != nil {
				return err
			}
			for _, r := range records {
				if n := len(s.Records); n == limit {
					last := &s.Records[n-1]
					s.Next = outboxCursor{last.BindingID, last.Seq}.String()
					return nil
				}
				s.Records = append(s.Records, outboxRecord(r))
				seq = r.Seq
			}
			if len(records) == 0 {
				break
			}
		}
	}
	return nil
}

func outboxRecord(r *gobridge.OutboxRecord) OutboxRecord {
	return OutboxRecord{
		Seq: r.Seq, RouteID: r.RouteID, BindingID: r.BindingID, MessageID: r.Envelope.ID, Generation: r.Generation,
		Topic: r.Envelope.Topic, Address: r.Address, PayloadBytes: len(r.Envelope.Payload),
		PersistedAt: r.PersistedAt.UTC(), ReplayCount: r.ReplayCount,
		FirstAttemptAt: optional(r.FirstAttemptAt), ExpiresAt: optional(r.Envelope.ExpiresAt),
	}
}

// optional is null for a time that is not set.
func optional(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}
