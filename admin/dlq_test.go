package admin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
)

// evidence is a dead letter that has everything.
func evidence() gobridge.DeadLetter {
	return gobridge.DeadLetter{
		Key: "k1", RouteID: "up", BindingID: "up/0", SourceID: "sensors",
		Category: gobridge.CategoryPermanent, Code: gobridge.CodeNotAuthorized, LastError: "publish: 0x87",
		Attempts: 3, FirstAt: epoch, LastAt: epoch.Add(time.Minute),
		Address: "site-1/a/b",
		Envelope: gobridge.Envelope{
			ID: "m-1", IDOrigin: gobridge.IDProducer, Subject: "reading", Topic: "a/b", Payload: []byte(`{"n":1}`),
			Headers:     []gobridge.Property{{Name: "k", Value: "v"}, {Name: "k", Value: "w"}},
			ContentType: "application/json", ResponseTopic: "r/1", CorrelationData: []byte{0, 0xff}, UTF8Payload: true,
			QoS: 1, Retain: true, Hops: 2, CreatedAt: epoch.Add(-time.Minute), ExpiresAt: epoch.Add(time.Hour),
		},
	}
}

func TestDeadLettersAreListedWithoutPayload(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.want(r.ask("GET", "/api/v1/admin/dlq", ""), 200, `{
  "depth": 0,
  "dead_letters": [],
  "next": ""
}
`)
	id := r.bury(evidence())[0]
	r.want(r.ask("GET", "/api/v1/admin/dlq", ""), 200, `{
  "depth": 1,
  "dead_letters": [
    {
      "id": "`+id+`",
      "route_id": "up",
      "binding_id": "up/0",
      "source_id": "sensors",
      "category": "permanent",
      "code": "NOT_AUTHORIZED",
      "last_error": "publish: 0x87",
      "attempts": 3,
      "replays": 0,
      "first_at": "2026-11-01T12:00:00Z",
      "last_at": "2026-11-01T12:01:00Z",
      "message_id": "m-1",
      "topic": "a/b",
      "address": "site-1/a/b",
      "payload_bytes": 7
    }
  ],
  "next": ""
}
`)
}

func TestOneDeadLetterShowsEverything(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bare := gobridge.DeadLetter{
		Key: "k2", Category: gobridge.CategoryExpired, FirstAt: epoch, LastAt: epoch,
		Envelope: gobridge.Envelope{ID: "m-2", Payload: []byte{0xff, 0}, CreatedAt: epoch},
	}
	ids := r.bury(evidence(), bare)
	r.want(r.ask("GET", "/api/v1/admin/dlq/"+ids[0], ""), 200, `{
  "id": "`+ids[0]+`",
  "route_id": "up",
  "binding_id": "up/0",
  "source_id": "sensors",
  "category": "permanent",
  "code": "NOT_AUTHORIZED",
  "last_error": "publish: 0x87",
  "attempts": 3,
  "replays": 0,
  "first_at": "2026-11-01T12:00:00Z",
  "last_at": "2026-11-01T12:01:00Z",
  "message_id": "m-1",
  "topic": "a/b",
  "address": "site-1/a/b",
  "payload_bytes": 7,
  "message": {
    "id_origin": "producer",
    "subject": "reading",
    "qos": 1,
    "retain": true,
    "hops": 2,
    "content_type": "application/json",
    "utf8_payload": true,
    "response_topic": "r/1",
    "correlation_data_base64": "AP8=",
    "headers": [
      {
        "name": "k",
        "value": "v"
      },
      {
        "name": "k",
        "value": "w"
      }
    ],
    "created_at": "2026-11-01T11:59:00Z",
    "expires_at": "2026-11-01T13:00:00Z",
    "payload_base64": "eyJuIjoxfQ==",
    "payload_text": "{\"n\":1}"
  }
}
`)
	r.want(r.ask("GET", "/api/v1/admin/dlq/"+ids[1], ""), 200, `{
  "id": "`+ids[1]+`",
  "route_id": "",
  "binding_id": "",
  "source_id": "",
  "category": "expired",
  "code": "",
  "last_error": "",
  "attempts": 0,
  "replays": 0,
  "first_at": "2026-11-01T12:00:00Z",
  "last_at": "2026-11-01T12:00:00Z",
  "message_id": "m-2",
  "topic": "",
  "address": "",
  "payload_bytes": 2,
  "message": {
    "id_origin": "generated",
    "subject": "",
    "qos": 0,
    "retain": false,
    "hops": 0,
    "content_type": "",
    "utf8_payload": false,
    "response_topic": "",
    "correlation_data_base64": null,
    "headers": [],
    "created_at": "2026-11-01T12:00:00Z",
    "expires_at": null,
    "payload_base64": "/wA="
  }
}
`)
}

// spread buries five dead letters on two routes, a minute apart.
func spread(r *rig) []string {
	var letters []gobridge.DeadLetter
	for i := range 5 {
		d := gobridge.DeadLetter{
			Key: fmt.Sprint(i), RouteID: []string{"up", "down"}[i%2], BindingID: []string{"up/0", "down/0"}[i%2],
			Category: gobridge.CategoryPoison, Code: gobridge.CodePoisonMessage,
			FirstAt: epoch, LastAt: epoch.Add(time.Duration(i) * time.Minute),
		}
		if i == 4 {
			d.Category, d.Code = gobridge.CategoryExpired, gobridge.CodeMessageExpired
		}
		letters = append(letters, d)
	}
	return r.bury(letters...)
}

func TestFiltersSelectDeadLetters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := spread(r)
	at := func(minute int) string {
		return url.QueryEscape(epoch.Add(time.Duration(minute) * time.Minute).Format(time.RFC3339))
	}
	for _, c := range []struct {
		query string
		want  []int
	}{
		{"", []int{0, 1, 2, 3, 4}},
		{"route_id=up", []int{0, 2, 4}},
		{"route_id=absent", nil},
		{"category=expired", []int{4}},
		{"code=POISON_MESSAGE", []int{0, 1, 2, 3}},
		{"since=" + at(3), []int{3, 4}},
		{"before=" + at(1), []int{0}},
		{"since=" + at(1) + "&before=" + at(3), []int{1, 2}},
		{"route_id=up&code=POISON_MESSAGE&since=" + at(1), []int{2}},
		{"cursor=" + ids[2], []int{3, 4}},
	} {
		page := answer[DLQPage](r, r.ask("GET", "/api/v1/admin/dlq?"+c.query, ""), 200)
		var got []int
		for _, d := range page.DeadLetters {
			got = append(got, slices.Index(ids, d.ID))
		}
		if !slices.Equal(got, c.want) || page.Depth != 5 || page.Next != "" {
			t.Errorf("%q: %v of %d, next %q; want %v", c.query, got, page.Depth, page.Next, c.want)
		}
	}
}

func TestPagesOfDeadLettersFollowEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := spread(r)
	var got []string
	sizes := []int{}
	for cursor := ""; ; {
		page := answer[DLQPage](r, r.ask("GET", "/api/v1/admin/dlq?limit=2&cursor="+cursor, ""), 200)
		sizes = append(sizes, len(page.DeadLetters))
		for _, d := range page.DeadLetters {
			got = append(got, d.ID)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if diff := cmp.Diff(ids, got); diff != "" || !slices.Equal(sizes, []int{2, 2, 1}) {
		t.Errorf("pages of %v (-want +got):\n%s", sizes, diff)
	}
	// A page that is exactly full is the last one when nothing follows.
	if page := answer[DLQPage](r, r.ask("GET", "/api/v1/admin/dlq?limit=5", ""), 200); page.Next != "" {
		t.Errorf("next %q after everything", page.Next)
	}
}

func TestPagesOfCompleteDeadLettersAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	big := bytes.Repeat([]byte{0xff}, pageBytes/2)
	for i := range 3 {
		r.bury(gobridge.DeadLetter{Key: fmt.Sprint(i), Envelope: gobridge.Envelope{Payload: big}})
	}
	first := answer[DLQPage](r, r.ask("GET", "/api/v1/admin/dlq?full=true", ""), 200)
	if len(first.DeadLetters) != 2 || first.Next == "" {
		t.Fatalf("%d entries, next %q; want 2 and a cursor", len(first.DeadLetters), first.Next)
	}
	rest := answer[DLQPage](r, r.ask("GET", "/api/v1/admin/dlq?full=true&cursor="+first.Next, ""), 200)
	if len(rest.DeadLetters) != 1 || rest.Next != "" || len(rest.DeadLetters[0].Message.Payload) != len(big) {
		t.Errorf("%d entries, next %q; want the last one, complete", len(rest.DeadLetters), rest.Next)
	}
}

func TestDeadLettersAreDeletedByIDAndByFilter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ids := spread(r)
	body, _ := json.Marshal(DLQDelete{IDs: []string{ids[0], "absent"}})
	r.want(r.ask("POST", "/api/v1/admin/dlq/delete", string(body)), 200, `{
  "deleted": 1,
  "more": false
}
`)
	r.want(r.ask("POST", "/api/v1/admin/dlq/delete", `{"filter": {"route_id": "down"}, "confirm": true}`), 200, `{
  "deleted": 2,
  "more": false
}
`)
	if r.depth() != 2 {
		t.Errorf("%d left, want 2", r.depth())
	}
	r.want(r.ask("POST", "/api/v1/admin/dlq/delete", `{"filter": {}, "confirm": true}`), 200, `{
  "deleted": 2,
  "more": false
}
`)
}

func TestOneRequestDeletesABoundedNumber(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range maxDeletes + 2 {
		if _, err := r.op.dlq.Put(t.Context(), &gobridge.DeadLetter{Key: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []DLQDeleted{{maxDeletes, true}, {2, false}, {0, false}} {
		got := answer[DLQDeleted](r, r.ask("POST", "/api/v1/admin/dlq/delete", `{"filter": {}, "confirm": true}`), 200)
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

func TestEveryCategoryIsKnown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for c := range strings.FieldsSeq("permanent expired poison unstable_identity retry_unsupported filtered subscription_removed") {
		if w := r.ask("GET", "/api/v1/admin/dlq?category="+c, ""); w.Code != 200 {
			t.Errorf("%s: status %d", c, w.Code)
		}
	}
}
