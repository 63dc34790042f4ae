package guarantee

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gobridge/gobridge/internal/conformance"
)

var update = flag.Bool("update", false, "rewrite the page and the expected files")

// evidence is what the test files of the module say.
func evidence(t *testing.T) *conformance.Tests {
	t.Helper()
	tests, err := conformance.ReadTests(os.DirFS(".."))
	if err != nil {
		t.Fatal(err)
	}
	return tests
}

func TestPageIsFresh(t *testing.T) {
	covering := evidence(t).Covering
	want := page(func(id string) string { return conformance.Row{Tests: covering[id]}.Covered() })
	const name = "../docs/guarantees.md"
	if *update {
		if err := os.WriteFile(name, []byte(want), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is stale, run go generate ./guarantee (-want +got):\n%s", name, diff)
	}
}

// missing returns what keeps the rows and the tests from agreeing, one line a fault.
func missing(rows []Row, covering map[string][]conformance.Test) []string {
	var faults []string
	known := map[string]bool{}
	for i := range rows {
		known[rows[i].ID] = true
		if rows[i].matrix() && len(covering[rows[i].ID]) == 0 {
			faults = append(faults, rows[i].ID+" is proved by no test (write // Covers: "+rows[i].ID+" above one)")
		}
	}
	for id, tests := range covering {
		if strings.HasPrefix(id, "G") && !known[id] {
			faults = append(faults, tests[0].String()+" covers "+id+", which is no row")
		}
	}
	return faults
}

func TestEveryRowIsProvedByATest(t *testing.T) {
	for _, fault := range missing(rows, evidence(t).Covering) {
		t.Error(fault)
	}
}

func TestMissingEvidenceIsFound(t *testing.T) {
	a := []conformance.Test{{Package: "engine", Name: "TestA"}}
	some := []Row{{ID: "G01"}, {ID: "G02"}, {ID: "outage"}}
	for _, c := range []struct {
		name     string
		covering map[string][]conformance.Test
		want     []string
	}{
		{"all", map[string][]conformance.Test{"G01": a, "G02": a, "S1-101": a}, nil},
		{"no test", map[string][]conformance.Test{"G01": a}, []string{"G02 is proved by no test (write // Covers: G02 above one)"}},
		{"no row", map[string][]conformance.Test{"G01": a, "G02": a, "G77": a}, []string{"engine.TestA covers G77, which is no row"}},
	} {
		if diff := cmp.Diff(c.want, missing(some, c.covering)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// The page and the explanations name rows by id, so each stands once and says
// everything.
func TestRowsAreComplete(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range Rows() {
		if seen[r.ID] {
			t.Errorf("%s stands twice", r.ID)
		}
		seen[r.ID] = true
		for _, text := range []string{r.ID, r.Source, r.Mode, r.When, r.Then, string(r.Verdict)} {
			if text == "" || strings.ContainsAny(text, "|\n") {
				t.Errorf("%s: a column holds %q", r.ID, text)
			}
		}
		if refused := r.Verdict == Refused; refused != (r.apply == nil) {
			t.Errorf("%s: verdict %s, and applies to some config: %t", r.ID, r.Verdict, r.apply != nil)
		}
	}
}
