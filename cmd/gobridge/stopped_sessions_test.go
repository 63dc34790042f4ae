package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/admin"
	"github.com/gobridge/gobridge/kinds"
)

// withHistory are all kinds, with an mqtt whose history holds plain filters.
func withHistory(t *testing.T) *gobridge.Kinds {
	t.Helper()
	all := kinds.All()
	mqtt := all.Transport("mqtt")
	key := func(use *gobridge.SessionUse) gobridge.HistoryKey {
		return gobridge.HistoryKey{SessionID: use.Session.ID, ClientID: mqtt.ClientID(use.Session)}
	}
	mqtt.Subscriptions = func(ctx context.Context, h gobridge.History, use *gobridge.SessionUse) ([]gobridge.SubscriptionState, bool, error) {
		entries, known, err := h.Load(ctx, key(use))
		var all []gobridge.SubscriptionState
		for _, e := range entries {
			all = append(all, gobridge.SubscriptionState{Filter: e, Wanted: e == use.Receiver.Topics[0].Topic})
		}
		return all, known, err
	}
	mqtt.Seed = func(ctx context.Context, h gobridge.History, use *gobridge.SessionUse, discard bool, further ...string) error {
		if discard {
			return h.Reset(ctx, key(use))
		}
		return h.Remember(ctx, key(use), append(further, use.Receiver.Topics[0].Topic)...)
	}
	return all
}

// A session whose history is lost with the data_dir gets a baseline before the start.
func TestSeedMakesALostDataDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, data := filepath.Join(dir, "bridge.yaml"), filepath.Join(dir, "data")
	if err := os.WriteFile(file, []byte(strings.Replace(stoppedConfig, "data_dir: data", "data_dir: "+data, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if code := execute([]string{"subscriptions", "list", "-c", file}, &out, &errs); code != exitFailed || !strings.Contains(errs.String(), "does not exist") {
		t.Errorf("list: exit code %d, stderr %q", code, &errs)
	}
	errs.Reset()
	if code := execute([]string{"subscriptions", "seed", "edge", "-c", file}, &out, &errs); code != exitOK {
		t.Errorf("seed: exit code %d, stderr %q", code, &errs)
	}
	out.Reset()
	if code := execute([]string{"subscriptions", "list", "-c", file}, &out, &errs); code != exitOK || !strings.Contains(out.String(), "a/#") {
		t.Errorf("list after it: exit code %d, %q, stderr %q", code, &out, &errs)
	}
}

func TestStoppedBridgeShowsAndSeedsItsHistory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o750); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "bridge.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(stoppedConfig, "data_dir: data", "data_dir: "+data, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	k := withHistory(t)
	open := func() *client {
		c, err := openStopped(t.Context(), &cobra.Command{}, file, k, need{history: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	list := func(c *client) []gobridge.SessionSubscriptions {
		var l admin.SubscriptionList
		if err := c.call(t.Context(), http.MethodGet, "subscriptions", nil, nil, &l); err != nil {
			t.Fatal(err)
		}
		return l.Sessions
	}
	edge := gobridge.SessionSubscriptions{SessionID: "edge", ClientID: "plant-7-edge", Filters: []gobridge.SubscriptionState{}}

	c := open()
	if diff := cmp.Diff([]gobridge.SessionSubscriptions{edge}, list(c)); diff != "" {
		t.Errorf("before (-want +got):\n%s", diff)
	}
	var seeded gobridge.SessionSubscriptions
	seed := admin.SubscriptionSeed{Filters: []string{"old/#"}}
	if err := c.call(t.Context(), http.MethodPost, "subscriptions/edge/seed", nil, seed, &seeded); err != nil {
		t.Fatal(err)
	}
	err := c.call(t.Context(), http.MethodPost, "subscriptions/absent/seed", nil, seed, &seeded)
	if want := `there is no session "absent" (sessions: edge, cloud)`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}

	// The next start finds it.
	edge.Known = true
	edge.Filters = []gobridge.SubscriptionState{{Filter: "a/#", Wanted: true}, {Filter: "old/#"}}
	if diff := cmp.Diff([]gobridge.SessionSubscriptions{edge}, list(open())); diff != "" {
		t.Errorf("after (-want +got):\n%s", diff)
	}
}
