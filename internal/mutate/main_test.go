package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gobridge/gobridge/internal/conformance"
)

const root = "../.."

// The mutations are tried by hand (make mutate); this keeps the table from rotting.
func TestEveryMutationStillFits(t *testing.T) {
	tests, err := conformance.ReadTests(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range mutations {
		if seen[m.id] {
			t.Errorf("%s stands twice", m.id)
		}
		seen[m.id] = true
		if _, err := m.plant(root, t.TempDir()); err != nil {
			t.Errorf("%s: %v", m.id, err)
		}
		if m.old == m.new {
			t.Errorf("%s changes nothing", m.id)
		}
		if !slices.Contains(tests.Covering[m.id], conformance.Test{Package: m.pkg, Name: m.test}) {
			t.Errorf("%s: %s.%s does not say that it covers it", m.id, m.pkg, m.test)
		}
	}
	if len(mutations) < 30 {
		t.Errorf("%d mutations, want at least 30", len(mutations))
	}
}

func TestMutationThatDoesNotFitIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/a.go", []byte("one\none\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, old := range []string{"one", "three"} {
		if _, err := (mutation{file: "a.go", old: old, new: "x"}).plant(dir, t.TempDir()); err == nil || !strings.Contains(err.Error(), "want once") {
			t.Errorf("%s: %v, want it refused", old, err)
		}
	}
	out := t.TempDir()
	if _, err := (mutation{file: "a.go", old: "two", new: "2"}).plant(dir, out); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(out + "/a.go"); err != nil || string(got) != "one\none\n2\n" {
		t.Errorf("planted %q, %v", got, err)
	}
}
