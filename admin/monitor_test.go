package admin

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/metric"
)

func request(t *testing.T, b Bridge, method, target string) *http.Response {
	t.Helper()
	w := httptest.NewRecorder()
	NewHandler(b, NewAPI(&fakeOperator{}, nil, testLogger(t)), metric.NewRegistry(), testLogger(t)).ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w.Result()
}

func body(t *testing.T, res *http.Response) string {
	t.Helper()
	var b strings.Builder
	if err := res.Write(&b); err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(b.String(), "\r\n\r\n")
	return text
}

func TestProbes(t *testing.T) {
	notSubscribed := []gobridge.Reason{{SessionID: "edge", Reason: "sensors/# is not granted"}}
	notFull := append([]gobridge.Reason{
		{RouteID: "up", Reason: "destination cloud is unavailable"}, {Reason: "recovery pending"},
	}, notSubscribed...)
	well := &fakeBridge{}
	ill := &fakeBridge{
		live: errors.New("store writer stopped"),
		reasons: map[gobridge.ServiceLevel][]gobridge.Reason{
			gobridge.LevelSubscribed: notSubscribed,
			gobridge.LevelFull:       notFull,
		},
	}
	for _, c := range []struct {
		name   string
		bridge *fakeBridge
		target string
		status int
		body   string
	}{
		{"live", well, "/livez", 200, `{
  "live": true
}
`},
		{"dead", ill, "/livez", 503, `{
  "live": false,
  "reason": "store writer stopped"
}
`},
		{"ready", well, "/readyz", 200, `{
  "ready": true,
  "level": "full",
  "reasons": []
}
`},
		{"connected although not subscribed", ill, "/readyz?level=connected", 200, `{
  "ready": true,
  "level": "connected",
  "reasons": []
}
`},
		{"not subscribed", ill, "/readyz?level=subscribed", 503, `{
  "ready": false,
  "level": "subscribed",
  "reasons": [
    {
      "session_id": "edge",
      "reason": "sensors/# is not granted"
    }
  ]
}
`},
		{"no level means full", ill, "/readyz", 503, `{
  "ready": false,
  "level": "full",
  "reasons": [
    {
      "route_id": "up",
      "reason": "destination cloud is unavailable"
    },
    {
      "reason": "recovery pending"
    },
    {
      "session_id": "edge",
      "reason": "sensors/# is not granted"
    }
  ]
}
`},
		{"unknown level", well, "/readyz?level=none", 400, `{
  "error": "unknown level none",
  "hint": "levels: connected, subscribed, full; without one: full"
}
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := request(t, c.bridge, "GET", c.target)
			if res.StatusCode != c.status {
				t.Errorf("status = %d, want %d", res.StatusCode, c.status)
			}
			if got := res.Header.Get("Content-Type"); got != "application/json" {
				t.Errorf("content type = %q", got)
			}
			if diff := cmp.Diff(c.body, body(t, res)); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
		})
	}
}

// Covers: S1-412, S2-402
func TestDeepHealthHasThePromisedFields(t *testing.T) {
	session := gobridge.SessionHealth{
		State: "ready", Connected: true, SessionPresent: true, SubscriptionsWanted: 2, SubscriptionsActive: 1,
		ServiceLevel: gobridge.LevelConnected, UnsettledCount: 7, OldestUnsettledAge: 1500 * time.Millisecond,
		ReceiveWindowUtilization: 1.25, RecoveryRecycleCount: 3, LastError: "granted QoS 0", Reasons: []string{"a/# downgraded"},
	}
	b := &fakeBridge{health: gobridge.BridgeHealth{
		BridgeID: "plant-7", InstanceID: "gw-1", ServiceLevel: gobridge.BridgeDegraded,
		Sessions: []gobridge.SessionStatus{session.Status("edge")},
		Routes: []gobridge.RouteHealth{{
			ID: "up", DeliveryMode: gobridge.DirectHold, Ready: true, InFlight: 4, OldestUnsettledAgeMS: 20,
		}},
	}}
	res := request(t, b, "GET", "/api/v1/monitor/deephealth")
	if res.StatusCode != 200 {
		t.Errorf("status = %d, want 200", res.StatusCode)
	}
	want := `{
  "bridge_id": "plant-7",
  "instance_id": "gw-1",
  "ready": false,
  "service_level": "degraded",
  "sessions": [
    {
      "id": "edge",
      "state": "ready",
      "connected": true,
      "session_present": true,
      "has_lease": false,
      "subscriptions_wanted": 2,
      "subscriptions_active": 1,
      "service_level": "connected",
      "unsettled_count": 7,
      "oldest_unsettled_age_ms": 1500,
      "receive_window_utilization": 1.25,
      "recovery_recycle_count": 3,
      "last_error": "granted QoS 0",
      "reasons": [
        "a/# downgraded"
      ]
    }
  ],
  "routes": [
    {
      "id": "up",
      "delivery_mode": "direct_hold",
      "ready": true,
      "in_flight": 4,
      "outbox_depth": 0,
      "oldest_unsettled_age_ms": 20,
      "last_error": ""
    }
  ]
}
`
	if diff := cmp.Diff(want, body(t, res)); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
}

func TestDeepHealthListsAreNeverNull(t *testing.T) {
	got := body(t, request(t, &fakeBridge{}, "GET", "/api/v1/monitor/deephealth"))
	if strings.Contains(got, "null") {
		t.Errorf("body has null:\n%s", got)
	}
}

func TestTopologyDrawsTheSpec(t *testing.T) {
	qos0, qos1 := 0, 1
	spec := gobridge.Spec{
		Bridge:   gobridge.BridgeSpec{ID: "plant-7", InstanceID: "gw-1"},
		Sessions: []gobridge.SessionSpec{{ID: "edge", Transport: "mqtt", Mode: gobridge.ModePersistent, CredentialsURI: "env://S3cr3t"}},
		Receivers: []gobridge.ReceiverSpec{
			{ID: "sensors", SessionID: "edge", Topics: []gobridge.TopicSpec{{Topic: "a/#", QoS: &qos1}, {Topic: "b", QoS: &qos0}}},
			{ID: "in", Transport: "queue"},
		},
		Senders: []gobridge.SenderSpec{{ID: "cloud", SessionID: "edge"}, {ID: "in/0", SessionID: "edge"}},
		Routes: []gobridge.RouteSpec{
			{
				ID: "up", ReceiverID: "sensors", DeliveryMode: gobridge.DirectHold, DispatchMode: gobridge.DispatchSingle,
				Bindings: []gobridge.BindingSpec{{ID: "to-cloud", SenderID: "cloud", Address: "site/{topic}"}},
			},
			{
				ID: "in", ReceiverID: "in", DeliveryMode: gobridge.DirectHold, DispatchMode: gobridge.DispatchSingle,
				Bindings: []gobridge.BindingSpec{{ID: "in/0", SenderID: "in/0", Address: "x"}},
			},
		},
	}
	kinds := &gobridge.Kinds{Transports: []*gobridge.Transport{{
		Name: "mqtt", Endpoints: func(*gobridge.SessionSpec) []string { return []string{"broker:1883"} },
	}}}
	res := request(t, &fakeBridge{topology: spec.Topology(kinds)}, "GET", "/api/v1/monitor/topology")
	if res.StatusCode != 200 {
		t.Errorf("status = %d, want 200", res.StatusCode)
	}
	want := `{
  "bridge_id": "plant-7",
  "instance_id": "gw-1",
  "sessions": [
    {
      "id": "edge",
      "transport": "mqtt",
      "session_mode": "persistent",
      "endpoints": [
        "broker:1883"
      ]
    }
  ],
  "receivers": [
    {
      "id": "sensors",
      "session_id": "edge",
      "topics": [
        {
          "topic": "a/#",
          "qos": 1
        },
        {
          "topic": "b",
          "qos": 0
        }
      ]
    },
    {
      "id": "in",
      "transport": "queue",
      "topics": []
    }
  ],
  "routes": [
    {
      "id": "up",
      "receiver_id": "sensors",
      "delivery_mode": "direct_hold",
      "dispatch_mode": "single",
      "binding_ids": [
        "to-cloud"
      ]
    },
    {
      "id": "in",
      "receiver_id": "in",
      "delivery_mode": "direct_hold",
      "dispatch_mode": "single",
      "binding_ids": [
        "in/0"
      ]
    }
  ],
  "bindings": [
    {
      "id": "to-cloud",
      "route_id": "up",
      "sender_id": "cloud",
      "address": "site/{topic}"
    },
    {
      "id": "in/0",
      "route_id": "in",
      "sender_id": "in/0",
      "address": "x"
    }
  ],
  "senders": [
    {
      "id": "cloud",
      "session_id": "edge"
    },
    {
      "id": "in/0",
      "session_id": "edge"
    }
  ]
}
`
	if diff := cmp.Diff(want, body(t, res)); diff != "" {
		t.Errorf("body (-want +got):\n%s", diff)
	}
}

func TestRootLinksWhatThereIs(t *testing.T) {
	b := &fakeBridge{health: gobridge.BridgeHealth{BridgeID: "<plant>"}}
	res := request(t, b, "GET", "/")
	page := body(t, res)
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("status %d, content type %q", res.StatusCode, res.Header.Get("Content-Type"))
	}
	if !strings.Contains(page, "<h1>GoBridge &lt;plant&gt;</h1>") {
		t.Errorf("the page does not name the bridge, escaped:\n%s", page)
	}
	links := 0
	for part := range strings.SplitSeq(page, `href="`) {
		target, _, ok := strings.Cut(part, `"`)
		if !ok || !strings.HasPrefix(target, "/") {
			continue
		}
		links++
		if res := request(t, b, "GET", target); res.StatusCode != 200 {
			t.Errorf("GET %s = %d, want 200", target, res.StatusCode)
		}
	}
	if links != 7 {
		t.Errorf("%d links, want 7", links)
	}
}

func TestErrorsHaveOneShape(t *testing.T) {
	for _, c := range []struct {
		method, target string
		status         int
		allow, body    string
	}{
		{"GET", "/nothing", 404, "", `{
  "error": "no such path: /nothing",
  "hint": "GET / lists the paths"
}
`},
		{"GET", "/api/v1/nothing", 404, "", `{
  "error": "no such path: /api/v1/nothing",
  "hint": "GET / lists the paths"
}
`},
		{"POST", "/readyz", 405, "GET, HEAD", `{
  "error": "POST is not allowed on /readyz",
  "hint": "allowed: GET, HEAD"
}
`},
		{"DELETE", "/", 405, "GET, HEAD", `{
  "error": "DELETE is not allowed on /",
  "hint": "allowed: GET, HEAD"
}
`},
		{"PUT", "/metrics", 405, "GET, HEAD", `{
  "error": "PUT is not allowed on /metrics",
  "hint": "allowed: GET, HEAD"
}
`},
	} {
		t.Run(c.method+" "+c.target, func(t *testing.T) {
			res := request(t, &fakeBridge{}, c.method, c.target)
			if res.StatusCode != c.status {
				t.Errorf("status = %d, want %d", res.StatusCode, c.status)
			}
			if got := res.Header.Get("Allow"); got != c.allow {
				t.Errorf("Allow = %q, want %q", got, c.allow)
			}
			if got := res.Header.Get("Content-Type"); got != "application/json" {
				t.Errorf("content type = %q", got)
			}
			if diff := cmp.Diff(c.body, body(t, res)); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryAnswerCarriesTheSecurityHeaders(t *testing.T) {
	for _, target := range []string{
		"/", "/livez", "/readyz", "/readyz?level=x", "/metrics", "/nothing", "/api/v1/monitor/deephealth", "/api/v1/monitor/topology",
	} {
		h := request(t, &fakeBridge{}, "GET", target).Header
		for name, want := range map[string]string{
			"Cache-Control":                "no-store",
			"Content-Security-Policy":      "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
			"Cross-Origin-Resource-Policy": "same-origin",
			"Referrer-Policy":              "no-referrer",
			"X-Content-Type-Options":       "nosniff",
			"X-Frame-Options":              "DENY",
		} {
			if got := h.Get(name); got != want {
				t.Errorf("GET %s: %s = %q, want %q", target, name, got, want)
			}
		}
	}
}

func TestHeadIsAnsweredWithoutBody(t *testing.T) {
	srv := httptest.NewServer(NewHandler(&fakeBridge{}, NewAPI(&fakeOperator{}, nil, testLogger(t)), metric.NewRegistry(), testLogger(t)))
	defer srv.Close()
	res, err := srv.Client().Head(srv.URL + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != 200 {
		t.Errorf("status = %d, want 200", res.StatusCode)
	}
}
