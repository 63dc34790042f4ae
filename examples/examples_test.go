package examples_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge/config"
	"github.com/gobridge/gobridge/examples"
	"github.com/gobridge/gobridge/kinds"
)

func all(t *testing.T) []examples.Example {
	t.Helper()
	all, err := examples.All()
	if err != nil || len(all) == 0 {
		t.Fatalf("%d examples: %v", len(all), err)
	}
	return all
}

func TestEveryExampleIsASoundConfig(t *testing.T) {
	t.Parallel()
	for _, e := range all(t) {
		file, diags := config.Load(e.Name+".yaml", e.Config, kinds.All())
		if file == nil {
			t.Errorf("%s: %v", e.Name, diags)
		}
		for _, d := range diags {
			// Best effort is what mixed-qos shows, and scale-out needs client ids that no
			// config can vouch for.
			if d.Warning && e.Name != "mixed-qos" && e.Name != "scale-out" {
				t.Errorf("%s", d)
			}
		}
		if e.Summary == "" || !strings.HasPrefix(string(e.Config), "# "+e.Summary) || len(e.Summary) > 90 {
			t.Errorf("%s: the first line is no short summary: %q", e.Name, e.Summary)
		}
	}
}

func TestTheFirstExampleIsTheDefault(t *testing.T) {
	t.Parallel()
	if first := all(t)[0]; first.Name != examples.Default {
		t.Errorf("the first example is %s", first.Name)
	}
}

func TestTheReadmeShowsTheFirstExample(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(readme), "```yaml\n")
	block, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("the README shows no config")
	}
	if diff := cmp.Diff(shown(t, all(t)[0].Config), shown(t, []byte(block))); diff != "" {
		t.Errorf("README (-example +README):\n%s", diff)
	}
}

// shown is what a config means.
func shown(t *testing.T, data []byte) string {
	t.Helper()
	file, diags := config.Load("x", data, kinds.All())
	if file == nil {
		t.Fatal(diags)
	}
	out, err := file.Show()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
