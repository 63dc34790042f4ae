package chaos

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gobridge/gobridge/bridgetest"
)

// edit is a change to a file of the module: old, which occurs once, becomes new.
type edit struct{ file, old, new string }

// bug is a fault planted into the bridge, to see that a run finds it.
type bug []edit

// bugs are those that CHAOS_PLANT names.
var bugs = map[string]bug{
	"ack-before-send": {{
		"engine/route.go", "\tif d.Record == nil {\n\t\tr.m.received.Inc()\n", "\tif d.Record == nil {\n\t\td.Ack()\n\t\tr.acked = true\n\t\tr.m.received.Inc()\n",
	}},
	"complete-before-puback": {{
		"engine/route.go", "\tenv := &d.Envelope\n\tfor i := range r.bindings {", "\tif d.Record != nil {\n\t\td.Ack()\n\t\tr.acked = true\n\t}\n\tenv := &d.Envelope\n\tfor i := range r.bindings {",
	}},
	"no-fsync": {{
		"store/sqlite/database.go", `d.dial("synchronous = FULL")`, `d.dial("synchronous = OFF")`,
	}},
	"wrong-dedup-scope": {{
		"store/sqlite/outbox_state.go", "\tb = appendText(b, r.BindingID)\n", "",
	}},
	"ledger-skipped": {{
		"engine/clerk.go", "n, err := r.ledger.Charge(ctx, key)", "n, err := 1, error(nil)\n\t_, _ = ctx, key",
	}},
}

// disk puts the SQLite files of the bridge on the disk of testdata/disk.go.
var disk = edit{"store/sqlite/conn.go", "fileURI(path, params)", "fileURI(path, onDisk(params))"}

// programs is where the programs of this test binary are.
var programs string

// build compiles the bridge with its disk and the planted bug, if any, and returns the
// path of the program. The source tree is not touched: changed files reach the compiler
// as an overlay.
func build(t *testing.T, plant string) string {
	t.Helper()
	program := filepath.Join(programs, "gobridge-"+plant)
	if _, err := os.Stat(program); err == nil {
		return program
	}
	edits := []edit{disk}
	if plant != "" {
		b, found := bugs[plant]
		if !found {
			t.Fatalf("no planted bug %q", plant)
		}
		edits = append(edits, b...)
	}
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	replace, err := overlay(root, dir, edits)
	if err != nil {
		t.Fatalf("plant: %v", err)
	}
	replace[filepath.Join(root, "store", "sqlite", "disk.go")] = filepath.Join(root, "chaos", "testdata", "disk.go")
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", file, "-o", program, "./cmd/gobridge")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the bridge: %v\n%s", err, out)
	}
	return program
}

// overlay writes the files that result from the edits into dir and returns which file
// replaces which.
func overlay(root, dir string, edits []edit) (map[string]string, error) {
	replace := map[string]string{}
	for _, e := range edits {
		original := filepath.Join(root, filepath.FromSlash(e.file))
		from := original
		if changed, found := replace[original]; found {
			from = changed
		}
		src, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		if n := strings.Count(string(src), e.old); n != 1 {
			return nil, fmt.Errorf("%s: the text to change occurs %d times, want once: %q", e.file, n, e.old)
		}
		changed := filepath.Join(dir, strings.ReplaceAll(e.file, "/", "-"))
		if err := os.WriteFile(changed, []byte(strings.Replace(string(src), e.old, e.new, 1)), 0o600); err != nil {
			return nil, err
		}
		replace[original] = changed
	}
	return replace, nil
}

// A planted bug that no longer fits its source would be found by nobody.
func TestPlantedBugsFitTheSource(t *testing.T) {
	t.Parallel()
	for name, b := range bugs {
		if _, err := overlay("..", t.TempDir(), append([]edit{disk}, b...)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever the seed: the bridge takes the config, and the same seed makes the same
// plan.
func TestEveryPlanIsAConfig(t *testing.T) {
	program := build(t, "")
	e := &end{t: t, link: bridgetest.NewProxy(t, "127.0.0.1:1"), login: filepath.Join(t.TempDir(), "login.json")}
	e.writeLogin()
	for seed := range uint64(30) {
		p := newPlan(seed, 20*time.Second)
		if again := newPlan(seed, 20*time.Second); again.String() != p.String() {
			t.Errorf("seed %d has two plans:\n%s\n%s", seed, p, again)
		}
		w := &world{t: t, plan: p, source: e, dests: []*end{e, e}}
		w.writeConfig()
		if out, err := exec.CommandContext(t.Context(), program, "validate", w.config).CombinedOutput(); err != nil {
			t.Errorf("validate: %v\n%s\n%s", err, out, p)
		}
	}
}
