package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
)

// sessionsOf is a bridge with a durable receiving session, an ephemeral one, one that
// only sends, and one whose transport keeps no history.
func sessionsOf(op *fakeOperator) {
	op.topology = gobridge.Topology{
		Sessions: []gobridge.TopologySession{
			{ID: "edge", SessionMode: gobridge.ModePersistent},
			{ID: "passing", SessionMode: gobridge.ModeEphemeral},
			{ID: "cloud", SessionMode: gobridge.ModePersistent},
			{ID: "queue", SessionMode: gobridge.ModePersistent},
		},
		Receivers: []gobridge.TopologyReceiver{{ID: "a", SessionID: "edge"}, {ID: "b", SessionID: "passing"}, {ID: "c", SessionID: "queue"}},
	}
	op.subscriptions = map[string]gobridge.SessionSubscriptions{"edge": {
		SessionID: "edge", ClientID: "plant-7-edge", Known: true,
		Filters: []gobridge.SubscriptionState{{Filter: "$share/g/a/#", Wanted: true, Granted: true}},
	}}
}

func TestSubscriptionsOfDurableSessionsAreListed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sessionsOf(r.op)
	r.want(r.ask("GET", "/api/v1/admin/subscriptions", ""), 200, `{
  "sessions": [
    {
      "session_id": "edge",
      "client_id": "plant-7-edge",
      "known": true,
      "filters": [
        {
          "filter": "$share/g/a/#",
          "wanted": true,
          "granted": true,
          "removed": false
        }
      ]
    }
  ]
}
`)
	r.op.failWith = errors.New("disk")
	r.want(r.ask("GET", "/api/v1/admin/subscriptions", ""), 500, `{
  "error": "disk"
}
`)
}

func TestSubscriptionsAreSeeded(t *testing.T) {
	t.Parallel()
	const path = "/api/v1/admin/subscriptions/edge/seed"
	for body, want := range map[string]string{
		"":                           "seed edge false []",
		`{}`:                         "seed edge false []",
		`{"filters": ["old/#","b"]}`: "seed edge false [old/# b]",
		`{"discard": true}`:          "seed edge true []",
	} {
		r := newRig(t)
		sessionsOf(r.op)
		w := r.ask("POST", path, body)
		if s := answer[gobridge.SessionSubscriptions](r, w, 200); s.SessionID != "edge" || !s.Known {
			t.Errorf("%s: answer %+v", body, s)
		}
		if diff := cmp.Diff([]string{want}, r.op.asked); diff != "" {
			t.Errorf("%s (-want +got):\n%s", body, diff)
		}
		if log := r.log.String(); !strings.Contains(log, "action=subscriptions.seed actor=loopback") || !strings.Contains(log, "session_id=edge") {
			t.Errorf("%s: log %s", body, log)
		}
	}
	for body, want := range map[string]string{
		`{"discard": true, "filters": ["a"]}`: "discard and filters exclude each other",
		`{"filters": ["a/#/b"]}`:              `\"a/#/b\" is not a topic filter`,
		`{"filter": "a"}`:                     "unknown field",
	} {
		r := newRig(t)
		sessionsOf(r.op)
		if w := r.ask("POST", path, body); w.Code != 400 || !strings.Contains(w.Body.String(), want) || r.op.asked != nil {
			t.Errorf("%s: %d %s, asked %q; want 400 with %s", body, w.Code, w.Body, r.op.asked, want)
		}
	}
}

func TestSessionVerbsReachTheSession(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"drain", "end", "retry"} {
		r := newRig(t, Key{Name: "ops", Key: gobridge.NewSecret("S3cr3t-of-operations")})
		sessionsOf(r.op)
		path := "/api/v1/admin/sessions/a%2Fb/" + verb
		if w := r.ask("POST", path, ""); w.Code != 401 || r.op.asked != nil {
			t.Errorf("%s without a key: %d, asked %q", verb, w.Code, r.op.asked)
		}
		key := []string{"Authorization", "Bearer S3cr3t-of-operations"}
		r.want(r.ask("POST", path, "", key...), 200, fmt.Sprintf("{\n  \"session_id\": \"a/b\",\n  \"done\": %q\n}\n", verb))
		if diff := cmp.Diff([]string{verb + " a/b"}, r.op.asked); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if log := r.log.String(); !strings.Contains(log, "action=session."+verb+" actor=ops") || !strings.Contains(log, "session_id=a/b") {
			t.Errorf("%s: log %s", verb, log)
		}
		if w := r.ask("GET", path, "", key...); w.Code != 405 {
			t.Errorf("GET %s: %d", verb, w.Code)
		}
	}
}

func TestSessionErrorsHaveTheirStatus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err    error
		status int
	}{
		{fmt.Errorf("session x: %w", gobridge.ErrNotFound), 404},
		{&gobridge.Error{Code: gobridge.CodeUnknownBaseline, Op: "session edge", Hint: "seed it"}, 409},
		{gobridge.ErrLeaseLost, 409},
		{gobridge.ErrNotSupported, 501},
		{gobridge.ErrNotConnected, 503},
		{context.DeadlineExceeded, 504},
	} {
		for _, path := range []string{"sessions/edge/drain", "sessions/edge/end", "sessions/edge/retry", "subscriptions/edge/seed"} {
			r := newRig(t)
			r.op.failWith = c.err
			w := r.ask("POST", "/api/v1/admin/"+path, "")
			if e := answer[Error](r, w, c.status); e.Error == "" {
				t.Errorf("%s: no reason in %s", path, w.Body)
			}
		}
	}
}
