package admin

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/store/memory"
)

// outcome hands what OutboxDone is told to a test.
type outcome chan error

func (o outcome) OutboxDone(_ []*gobridge.OutboxRecord, err error) { o <- err }

// fill persists records in an outbox of the rig.
func fill(r *rig, records ...*gobridge.OutboxRecord) *memory.Outbox {
	r.t.Helper()
	o := memory.NewOutboxStore(time.Hour).Open()
	r.t.Cleanup(func() { _ = o.Close() })
	done := make(outcome, 1)
	o.Persist(records, done)
	if err := <-done; err != nil {
		r.t.Fatal(err)
	}
	r.op.outbox = o
	return o
}

func TestOutboxShowsWhatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		at := time.Now().UTC()
		o := fill(r, &gobridge.OutboxRecord{
			RouteID: "up", BindingID: "up/0", Generation: 1, Address: "site-1/a",
			Envelope: gobridge.Envelope{ID: "m-1", Topic: "a", Payload: []byte("Conf1dential"), ExpiresAt: at.Add(time.Hour)},
		}, &gobridge.OutboxRecord{
			RouteID: "down", BindingID: "down/0", ReplayCount: 2, FirstAttemptAt: at,
			Envelope: gobridge.Envelope{ID: "m-2"},
		})
		defer o.Close()
		time.Sleep(1500 * time.Millisecond)
		stored := at.Format(time.RFC3339Nano)
		w := r.ask("GET", "/api/v1/admin/outbox", "")
		r.want(w, 200, `{
  "depth": 2,
  "oldest_age_ms": 1500,
  "error": "",
  "partitions": [
    {
      "route_id": "down",
      "binding_id": "down/0",
      "depth": 1,
      "oldest_age_ms": 1500
    },
    {
      "route_id": "up",
      "binding_id": "up/0",
      "depth": 1,
      "oldest_age_ms": 1500
    }
  ],
  "records": [
    {
      "seq": 2,
      "route_id": "down",
      "binding_id": "down/0",
      "message_id": "m-2",
      "generation": 0,
      "topic": "",
      "address": "",
      "payload_bytes": 0,
      "persisted_at": "`+stored+`",
      "replay_count": 2,
      "first_attempt_at": "`+stored+`",
      "expires_at": null
    },
    {
      "seq": 1,
      "route_id": "up",
      "binding_id": "up/0",
      "message_id": "m-1",
      "generation": 1,
      "topic": "a",
      "address": "site-1/a",
      "payload_bytes": 12,
      "persisted_at": "`+stored+`",
      "replay_count": 0,
      "first_attempt_at": null,
      "expires_at": "`+at.Add(time.Hour).Format(time.RFC3339Nano)+`"
    }
  ],
  "next": ""
}
`)
		if strings.Contains(w.Body.String(), "Conf1dential") {
			t.Error("the answer holds a payload")
		}
	})
}

func TestPagesOfTheOutboxCoverEveryBinding(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var records []*gobridge.OutboxRecord
	for i := range 9 {
		records = append(records, &gobridge.OutboxRecord{
			RouteID: "up", BindingID: []string{"c", "a", "b:1"}[i%3], Envelope: gobridge.Envelope{ID: fmt.Sprint(i)},
		})
	}
	records = append(records, &gobridge.OutboxRecord{RouteID: "down", BindingID: "d", Envelope: gobridge.Envelope{ID: "9"}})
	fill(r, records...)
	want := strings.Fields("1 4 7 2 5 8 0 3 6")
	for limit := 1; limit <= 10; limit++ {
		var got []string
		for cursor := ""; ; {
			s := answer[OutboxStatus](r, r.ask("GET", fmt.Sprintf("/api/v1/admin/outbox?route_id=up&limit=%d&cursor=%s", limit, cursor), ""), 200)
			if len(s.Records) > limit || s.Depth != 9 {
				t.Fatalf("%d records of %d, limit %d", len(s.Records), s.Depth, limit)
			}
			for _, rec := range s.Records {
				got = append(got, rec.MessageID)
			}
			if cursor = s.Next; cursor == "" {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %v, want %v", limit, got, want)
		}
	}
	if s := answer[OutboxStatus](r, r.ask("GET", "/api/v1/admin/outbox?binding_id=b:1", ""), 200); s.Depth != 3 || len(s.Records) != 3 || len(s.Partitions) != 1 {
		t.Errorf("binding b:1: depth %d, %d records", s.Depth, len(s.Records))
	}
	if s := answer[OutboxStatus](r, r.ask("GET", "/api/v1/admin/outbox?limit=0", ""), 200); s.Depth != 10 || len(s.Records) != 0 || s.Next != "" {
		t.Errorf("without records: depth %d, %d records, next %q", s.Depth, len(s.Records), s.Next)
	}
}

// failing is an outbox whose disk is full.
type failing struct{ *memory.Outbox }

func (failing) Err() error { return &gobridge.Error{Op: "store x.db", Hint: "the disk is full"} }

func TestOutboxSaysWhyItTakesNoWrites(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.op.outbox = failing{fill(r)}
	s := answer[OutboxStatus](r, r.ask("GET", "/api/v1/admin/outbox", ""), 200)
	if s.Error != "store x.db (the disk is full)" {
		t.Errorf("error %q", s.Error)
	}
}
