package layout

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// Lines of a Go file: above uneasyLines it is worth a thought, above maxLines it
// holds more than one concept.
const (
	uneasyLines = 600
	maxLines    = 1000
)

// word is something that must not stand in the repository. The words are written
// in pieces so that this table does not trip itself.
type word struct {
	re  *regexp.Regexp
	why string
}

var words = []word{
	{
		regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`),
		"unfinished work belongs in the tracker, not in the tree",
	},
	{
		regexp.MustCompile(`(^|[^\w.~-])/(ro` + `ot|ho` + `me|wo` + `rk|Us` + `ers)/\w`),
		"a path of one machine works on that machine only",
	},
	{
		regexp.MustCompile(`(?i)\b((pro` + `xy|su` + `m)\.golang\.org|registry\.npm` + `js\.org|py` + `pi\.org|(gh` + `cr|qu` + `ay|doc` + `ker)\.io|deb\.deb` + `ian\.org)\b`),
		"which registry or mirror serves a package is the machine's setting",
	},
}

// skipped are the directories that git ignores or that fuzzing fills with noise.
var skipped = []string{".git", "bin", "gobridge-data", "testdata/fuzz"}

func TestGoFilesStaySmall(t *testing.T) {
	t.Parallel()
	faults, uneasy, err := longFiles(tree())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		t.Error(f)
	}
	for _, f := range uneasy {
		t.Log(f)
	}
}

func TestNoForbiddenWords(t *testing.T) {
	t.Parallel()
	faults, err := forbiddenWords(tree())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		t.Error(f)
	}
}

// tree is the repository; tests run in their package's folder.
func tree() fs.FS { return os.DirFS("../..") }

// walk calls f with every file that belongs to the repository.
func walk(fsys fs.FS, f func(name string, content []byte)) error {
	return fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.ContainsFunc(skipped, func(s string) bool { return name == s || strings.HasSuffix(name, "/"+s) }) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		content, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		f(name, content)
		return nil
	})
}

func longFiles(fsys fs.FS) (faults, uneasy []string, err error) {
	err = walk(fsys, func(name string, content []byte) {
		n := bytes.Count(content, []byte("\n"))
		switch {
		case path.Ext(name) != ".go":
		case n > maxLines:
			faults = append(faults, fmt.Sprintf("%s has %d lines, more than %d: one file holds one concept, split it", name, n, maxLines))
		case n > uneasyLines:
			uneasy = append(uneasy, fmt.Sprintf("%s has %d lines, more than %d: does it hold one concept?", name, n, uneasyLines))
		}
	})
	return faults, uneasy, err
}

func forbiddenWords(fsys fs.FS) (faults []string, err error) {
	err = walk(fsys, func(name string, content []byte) {
		if bytes.IndexByte(content, 0) >= 0 {
			return // binary
		}
		line := 0
		for text := range bytes.Lines(content) {
			line++
			for _, w := range words {
				if found := w.re.Find(text); found != nil {
					faults = append(faults, fmt.Sprintf("%s:%d has %q: %s", name, line, bytes.TrimSpace(found), w.why))
				}
			}
		}
	})
	return faults, err
}

func TestFileRulesCatchPlantedFaults(t *testing.T) {
	t.Parallel()
	lines := func(n int) *fstest.MapFile { return &fstest.MapFile{Data: bytes.Repeat([]byte("\n"), n)} }
	faults, uneasy, err := longFiles(fstest.MapFS{
		"engine/fine.go":   lines(600),
		"engine/uneasy.go": lines(601),
		"engine/long.go":   lines(1001),
		"docs/long.md":     lines(2000),
		"bin/long.go":      lines(2000),
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(faults) != 1 || !strings.HasPrefix(faults[0], "engine/long.go has 1001 lines") {
		t.Errorf("faults %q, want engine/long.go alone", faults)
	}
	if len(uneasy) != 1 || !strings.HasPrefix(uneasy[0], "engine/uneasy.go has 601 lines") {
		t.Errorf("uneasy %q, want engine/uneasy.go alone", uneasy)
	}

	for text, want := range map[string]string{
		"// TO" + "DO: later":                    "tracker",
		"ctx := context.TO" + "DO()":             "tracker",
		"// FIX" + "ME":                          "tracker",
		"see /ho" + "me/ann/notes":               "path of one machine",
		`dir = "/ro` + `ot/go/bin"`:              "path of one machine",
		"(/wo" + "rk/main)":                      "path of one machine",
		"GOPROXY=https://pro" + "xy.golang.org":  "mirror",
		"image: gh" + "cr.io/gobridge/gobridge":  "mirror",
		"a method todo and a path ./ho" + "me/x": "",
		"https://example.com/wo" + "rk/plan":     "",
		"/var/lib/gobridge":                      "",
	} {
		faults, err := forbiddenWords(fstest.MapFS{"docs/a.md": {Data: []byte("fine\n" + text + "\n")}})
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case want == "" && len(faults) > 0:
			t.Errorf("%q is fine, got %q", text, faults)
		case want != "" && (len(faults) != 1 || !strings.HasPrefix(faults[0], "docs/a.md:2 has ") || !strings.Contains(faults[0], want)):
			t.Errorf("%q: got %q, want one fault in docs/a.md:2 about %q", text, faults, want)
		}
	}
}
