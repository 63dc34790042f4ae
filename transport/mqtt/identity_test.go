package mqtt

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge"
)

// Covers: S1-813, S1-814
func TestSuffixIsAppendedOnce(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, base := range []string{"", "telemetry"} {
		s := twoBrokers()
		edge, cloud := sessionSettings(&s.Sessions[0]), sessionSettings(&s.Sessions[1])
		edge.ClientID, edge.ClientIDSuffix = base, SuffixHostname
		cloud.ClientID, cloud.ClientIDSuffix = base, SuffixNonce
		s.Sessions[1].Mode = gobridge.ModeEphemeral
		edgeBase, cloudBase := base, base
		if base == "" {
			edgeBase, cloudBase = s.Bridge.ID+"-edge", s.Bridge.ID+"-cloud"
		}
		var seen []string
		for range 2 { // the config is checked when it is read and when it is run
			if faults, _ := problemsOf(s); faults != nil {
				t.Fatalf("faults %q", faults)
			}
			if got := clientID(&s.Sessions[0]); got != edgeBase+"-"+host {
				t.Errorf("client id %q, want %q and the host name", got, edgeBase)
			}
			seen = append(seen, clientID(&s.Sessions[1]))
		}
		if seen[0] != seen[1] || !regexp.MustCompile(`^`+regexp.QuoteMeta(cloudBase)+`-[0-9a-f]{8}$`).MatchString(seen[0]) {
			t.Errorf("client ids %q, want %s and eight hex digits, twice the same", seen, cloudBase)
		}
	}
}

// Covers: S1-817
func TestSuffixIsRefused(t *testing.T) {
	named := func() (string, error) { return "web-1", nil }
	for name, c := range map[string]struct {
		kind, mode string
		hostname   func() (string, error)
		want       string // part of the fault; empty: the suffix is web-1
	}{
		"persistent":         {SuffixHostname, gobridge.ModePersistent, named, ""},
		"ephemeral":          {SuffixHostname, gobridge.ModeEphemeral, named, ""},
		"hostname exclusive": {SuffixHostname, gobridge.ModeExclusive, named, "contradicts session_mode exclusive"},
		"nonce exclusive":    {SuffixNonce, gobridge.ModeExclusive, named, "contradicts session_mode exclusive"},
		"nonce persistent":   {SuffixNonce, gobridge.ModePersistent, named, "stranded"},
		"no name":            {SuffixHostname, gobridge.ModePersistent, func() (string, error) { return "", nil }, "needs the host name: it is empty"},
		"no answer": {
			SuffixHostname, gobridge.ModePersistent,
			func() (string, error) { return "", errors.New("uname: denied") }, "needs the host name: uname: denied",
		},
	} {
		var faults []string
		check := &useCheck{
			SessionUse: &gobridge.SessionUse{Session: &gobridge.SessionSpec{Mode: c.mode}},
			s:          &SessionSettings{ClientIDSuffix: c.kind},
			report:     func(path, what, _ string) { faults = append(faults, path+": "+what) },
		}
		got := check.suffix(c.hostname)
		if c.want == "" {
			if got != "web-1" || faults != nil {
				t.Errorf("%s: suffix %q, faults %q", name, got, faults)
			}
			continue
		}
		if got != "" || len(faults) != 1 || !strings.HasPrefix(faults[0], "options.session.client_id_suffix: ") || !strings.Contains(faults[0], c.want) {
			t.Errorf("%s: suffix %q, faults %q, want one with %q", name, got, faults, c.want)
		}
	}
}

// Covers: S1-810, S1-809
func TestShareWarnsOfTheClientIDOfADurableSession(t *testing.T) {
	const plain, shared = "a/#", "$share/g/a/#"
	for name, c := range map[string]struct {
		filter, mode, suffix string
		want                 []string
	}{
		"plain":      {plain, gobridge.ModePersistent, "", nil},
		"ephemeral":  {shared, gobridge.ModeEphemeral, SuffixNonce, nil},
		"persistent": {shared, gobridge.ModePersistent, "", []string{"options.session.client_id"}},
		"hostname":   {shared, gobridge.ModePersistent, SuffixHostname, []string{"options.session.client_id_suffix"}},
		"exclusive":  {shared, gobridge.ModeExclusive, "", []string{"session_mode"}},
	} {
		use := testUse("tcp://127.0.0.1:1", c.mode, topics(0, c.filter), func(s *SessionSettings, _ *SenderSettings) { s.ClientIDSuffix = c.suffix })
		check(use, func(path, what, _ string) { t.Errorf("%s: check: %s: %s", name, path, what) })
		var got []string
		warn(use, func(path, what, hint string) { got = append(got, path) })
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: warnings (-want +got):\n%s", name, diff)
		}
	}
}
