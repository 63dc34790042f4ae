package conformance

import (
	"flag"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the names of the tests into the page")

const page = "../../docs/conformance.md"

func TestPageAgreesWithTheTests(t *testing.T) {
	tests, err := ReadTests(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		text = Update(text, tests)
		if err := os.WriteFile(page, text, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if len(Rows(text)) < 200 {
		t.Errorf("%d rows are read from %s: the form of its tables has changed", len(Rows(text)), page)
	}
	for _, fault := range Check(text, tests) {
		t.Error(fault)
	}
}

func readTests(t *testing.T, files map[string]string) *Tests {
	t.Helper()
	fsys := fstest.MapFS{}
	for name, src := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(src)}
	}
	tests, err := ReadTests(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return tests
}

const planted = `package a

// Something holds.
// Covers: S1-101, S1-102, G05
func TestA(t *testing.T) {
	for range []int{
		// Covers: S2-201
		1,
	} {
	}
}

func TestB(t *testing.T) {}
`

func TestCommentsAreReadWhereTheyStand(t *testing.T) {
	tests := readTests(t, map[string]string{
		"a/a_test.go":            planted,
		"b_test.go":              "package gobridge\n\n// Covers: S1-101\nfunc FuzzB(f *testing.F) {}\n",
		"a/a.go":                 "package a // Covers: S1-999",
		"a/testdata/old_test.go": "no Go",
	})
	a, b := Test{"a", "TestA"}, Test{"gobridge", "FuzzB"}
	want := &Tests{
		Names:    map[Test]bool{a: true, {"a", "TestB"}: true, b: true},
		Covering: map[string][]Test{"S1-101": {a, b}, "S1-102": {a}, "S2-201": {a}, "G05": {a}},
	}
	if diff := cmp.Diff(want, tests); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUnreadableCommentsAreFaults(t *testing.T) {
	for src, want := range map[string]string{
		"// Covers S1-101\nfunc TestA(t *testing.T) {}":                            "is not read",
		"// This covers S1-101.\nfunc TestA(t *testing.T) {}":                      "is not read",
		"// Covers: S1-101,S1-102\nfunc TestA(t *testing.T) {}":                    "is not read",
		"// Covers: G5\nfunc TestA(t *testing.T) {}":                               "is not read",
		"// Covers: S1-101\n\nfunc TestA(t *testing.T) {}":                         "belongs to no test",
		"// Covers: S1-101\nfunc check(t *testing.T) {}":                           "belongs to no test",
		"// Covers: S1-101\nfunc TestMain(m *testing.M) {}":                        "belongs to no test",
		"func TestA(t *testing.T) {\n\tx := 1 // S1-101 is covered by this row\n}": "is not read",
	} {
		tests := readTests(t, map[string]string{"a_test.go": "package a\n\n" + src + "\n"})
		if len(tests.Faults) != 1 || !strings.Contains(tests.Faults[0], want) || !strings.HasPrefix(tests.Faults[0], "a_test.go:") {
			t.Errorf("%q: faults %q, want one that it %s", src, tests.Faults, want)
		}
	}
}

func TestPlantedFaultsOfThePageAreFound(t *testing.T) {
	tests := readTests(t, map[string]string{"a/a_test.go": planted})
	sound := []string{
		"| id | promise | how |",
		"|---|---|---|",
		"| S1-101 | One. | a: TestA |",
		"| S1-102 | Two. | V2<br>a: TestA |",
		"| S1-103 | Three. | docs: [operating](operating.md) |",
		"| S2-201 | Four. | a: TestA |",
	}
	replaced := func(old, new string) string { return strings.Replace(strings.Join(sound, "\n"), old, new, 1) }
	for _, c := range []struct{ name, page, want string }{
		{"sound", replaced("", ""), ""},
		{"unknown id", replaced("| S2-201 | Four. | a: TestA |", ""), "a.TestA covers S2-201, which docs/conformance.md does not have"},
		{"not covered", replaced("docs: [operating](operating.md)", ""), "S1-103 is covered by no test"},
		{"names a test and is covered by none", replaced("docs: [operating](operating.md)", "a: TestB"), "S1-103 names a.TestB, which does not say"},
		{"duplicate", replaced("| S1-102", "| S1-101 | One. | a: TestA |\n| S1-102"), "S1-101 stands on the page twice"},
		{"renamed test", replaced("a: TestA", "a: TestA, TestOld"), "S1-101 names a.TestOld, which does not exist"},
		{"stale", replaced("V2<br>a: TestA", "V2"), "S1-102 does not name a.TestA"},
		{"no longer later", replaced("V2<br>", "later: soon<br>"), `S1-102 says "later", but a.TestA covers it`},
	} {
		t.Run(c.name, func(t *testing.T) {
			faults := Check([]byte(c.page), tests)
			if c.want == "" {
				if len(faults) != 0 {
					t.Errorf("faults %q", faults)
				}
				return
			}
			if len(faults) == 0 || !strings.Contains(strings.Join(faults, "\n"), c.want) {
				t.Errorf("faults %q, want %q", faults, c.want)
			}
			fixed := Update([]byte(c.page), tests)
			generated := strings.Contains(c.want, "names") || strings.Contains(c.want, "later") || strings.Contains(c.want, "does not name")
			if left := Check(fixed, tests); generated && c.name != "names a test and is covered by none" && len(left) != 0 {
				t.Errorf("after the update: %q", left)
			}
		})
	}
}
