package credential

import (
	"strings"
	"testing"

	"github.com/gobridge/gobridge"
)

func TestEnvironmentIsReadByPrefix(t *testing.T) {
	t.Setenv("EDGE_USERNAME", "edge")
	t.Setenv("EDGE_PASSWORD", "hunter2")
	t.Setenv("EDGE_CA", "A")
	t.Setenv("EDGE_CERT", "C")
	t.Setenv("EDGE_KEY", "K")
	creds, err := openEnv(t.Context(), "env://EDGE", gobridge.Env{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := creds.Current()
	want := gobridge.Credential{Username: "edge", Password: gobridge.NewSecret("hunter2"), CA: "A", Cert: "C", Key: gobridge.NewSecret("K")}
	if err != nil || !got.Equal(want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if creds.Changed() != nil {
		t.Error("an environment that may change")
	}
	if err := creds.Close(); err != nil {
		t.Error(err)
	}
}

func TestEmptyEnvironmentIsAnError(t *testing.T) {
	t.Setenv("NOBODY_USERNAME", "")
	creds, err := openEnv(t.Context(), "env://NOBODY", gobridge.Env{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := creds.Current(); err == nil || !got.IsZero() || !strings.Contains(err.Error(), "NOBODY_USERNAME") {
		t.Errorf("got %+v, %v, want an error that names the variables", got, err)
	}
}

func TestURIForms(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind *gobridge.CredentialKind
		uri  string
		ok   bool
	}{
		{EnvKind(), "env://EDGE", true},
		{EnvKind(), "env://edge_1", true},
		{EnvKind(), "env://", false},
		{EnvKind(), "env://A-B", false},
		{EnvKind(), "env://A/B", false},
		{EnvKind(), "env:A", false},
		{FileKind(), "file:///run/secrets/edge.json", true},
		{FileKind(), "file:///run/a%20b", true},
		{FileKind(), "file://run/secrets", false},
		{FileKind(), "file:///", false},
		{FileKind(), "file:///run/", false},
		{FileKind(), "file:relative", false},
		{FileKind(), "file:///a?b=c", false},
		{FileKind(), "file://user:pw@/a", false},
	} {
		if err := c.kind.Check(c.uri); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.uri, err)
		}
	}
}
