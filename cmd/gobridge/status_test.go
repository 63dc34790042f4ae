package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gobridge/gobridge"
)

// bridgeAnswering serves the health of a bridge.
func bridgeAnswering(t *testing.T, status int, body any) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/prefix"+healthPath {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}))
	t.Cleanup(func() {
		srv.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return srv.URL + "/prefix"
}

func TestStatusShowsSessionsRoutesAndReasons(t *testing.T) {
	h := gobridge.BridgeHealth{
		BridgeID: "plant-7", InstanceID: "gw-1", ServiceLevel: gobridge.BridgeDegraded,
		Sessions: []gobridge.SessionStatus{{
			ID: "edge", State: "connected", ServiceLevel: gobridge.LevelConnected, SubscriptionsWanted: 2, SubscriptionsActive: 1,
			UnsettledCount: 7, OldestUnsettledAgeMS: 1500, ReceiveWindowUtilization: 0.5, LastError: "refused\nfilter",
			Reasons: []string{"1 of 2 filters granted"},
		}},
		Routes: []gobridge.RouteHealth{{ID: "up", DeliveryMode: "direct_hold", InFlight: 3, OldestUnsettledAgeMS: 2500, Reasons: []string{"session cloud is away"}}},
	}
	var out, errs bytes.Buffer
	if code := execute([]string{"status", "--url", bridgeAnswering(t, 200, h)}, &out, &errs); code != exitFailed || errs.Len() > 0 {
		t.Errorf("exit code %d, stderr %q; want %d and nothing", code, &errs, exitFailed)
	}
	const want = `plant-7 (gw-1): not ready, service level degraded

SESSION  STATE      LEVEL      SUBSCRIPTIONS  UNSETTLED  OLDEST  WINDOW  LAST ERROR
edge     connected  connected  1/2            7          1.5s    50%     refused filter

ROUTE  READY  MODE         IN FLIGHT  OLDEST  OUTBOX  LAST ERROR
up     no     direct_hold  3          2.5s    0       -

WHY NOT READY
session edge: 1 of 2 filters granted
route up: session cloud is away
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

func TestStatusOfAReadyBridgeExitsZero(t *testing.T) {
	h := gobridge.BridgeHealth{Ready: true, ServiceLevel: gobridge.BridgeFull}
	var out, errs bytes.Buffer
	if code := execute([]string{"status", "--json", "--url", bridgeAnswering(t, 200, h)}, &out, &errs); code != exitOK {
		t.Errorf("exit code %d, stderr %s", code, &errs)
	}
	var got gobridge.BridgeHealth
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || !got.Ready {
		t.Errorf("output %q: %v", &out, err)
	}
}

func TestStatusRefusesWhatIsNoBridge(t *testing.T) {
	for _, tt := range []struct {
		status int
		body   any
		want   string
	}{
		{404, "x", "answers 404 Not Found (is this the http.listen of a bridge?)"},
		{200, "x", "does not answer like a bridge"},
	} {
		var out, errs bytes.Buffer
		code := execute([]string{"status", "--url", bridgeAnswering(t, tt.status, tt.body)}, &out, &errs)
		if code != exitFailed || !strings.Contains(errs.String(), tt.want) || strings.Count(errs.String(), "\n") != 1 {
			t.Errorf("exit code %d, stderr %q; want %q", code, &errs, tt.want)
		}
	}
}
