// Command mutate tries whether tests notice: for promises of docs/conformance.md it
// plants one fault each into the code and demands that the promise's test fails.
//
//	go run ./internal/mutate                  # all of them, some minutes
//	go run ./internal/mutate -only S1-105,S1-318
//
// The source tree is not touched: the changed file reaches the compiler as an
// overlay. Every test runs once without a fault first, and has to pass.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

func main() {
	only := flag.String("only", "", "promises to try, separated by commas; all without it")
	timeout := flag.Duration("timeout", 3*time.Minute, "bound of one test run, its build included")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *only, *timeout); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// run tries the selected mutations and prints a line for each. The error tells how
// many were not caught.
func run(ctx context.Context, only string, timeout time.Duration) error {
	selected := slices.Clone(mutations)
	if only != "" {
		ids := strings.Split(only, ",")
		selected = slices.DeleteFunc(selected, func(m mutation) bool { return !slices.Contains(ids, m.id) })
	}
	if len(selected) == 0 {
		return fmt.Errorf("no mutation for %q; see internal/mutate/table.go", only)
	}
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	if err := unmutated(ctx, root, selected, timeout); err != nil {
		return err
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	survivors := 0
	for _, m := range selected {
		began := time.Now()
		verdict := try(ctx, root, m, timeout)
		if verdict != caught {
			survivors++
		}
		fmt.Fprintf(out, "%s\t%s\t%s.%s\t%s\t%.1fs\n", m.id, verdict, m.pkg, m.test, m.file, time.Since(began).Seconds())
		if err := out.Flush(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if survivors > 0 {
		return fmt.Errorf("%d of %d mutations were not caught", survivors, len(selected))
	}
	fmt.Printf("%d mutations, all caught\n", len(selected))
	return nil
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// unmutated runs the tests of all mutations on the code as it is.
func unmutated(ctx context.Context, root string, selected []mutation, timeout time.Duration) error {
	tests := map[string][]string{}
	for _, m := range selected {
		if !slices.Contains(tests[m.pkg], m.test) {
			tests[m.pkg] = append(tests[m.pkg], m.test)
		}
	}
	for pkg, names := range tests {
		if out, err := goTest(ctx, root, "", pkg, names, timeout*time.Duration(len(names))); err != nil {
			return fmt.Errorf("the tests of %s fail without a mutation: %w\n%s", pkg, err, out)
		}
	}
	return nil
}

const (
	caught   = "caught"
	survived = "SURVIVED"
	broken   = "DOES NOT BUILD"
)

// try plants one fault and runs its test.
func try(ctx context.Context, root string, m mutation, timeout time.Duration) string {
	dir, err := os.MkdirTemp("", "mutate-")
	if err != nil {
		return err.Error()
	}
	defer os.RemoveAll(dir)
	overlay, err := m.plant(root, dir)
	if err != nil {
		return err.Error()
	}
	out, err := goTest(ctx, root, overlay, m.pkg, []string{m.test}, timeout)
	switch {
	case err == nil:
		return survived
	case strings.Contains(out, "[build failed]") || strings.Contains(out, "[setup failed]"):
		return broken
	case strings.Contains(out, "--- FAIL: "+m.test) || strings.Contains(out, "panic: ") || strings.Contains(out, "fatal error: "):
		return caught
	}
	return fmt.Sprintf("%v: %s", err, lastLine(out))
}

// plant writes the changed file and the overlay that puts it in the place of the
// original, and returns the path of the overlay.
func (m mutation) plant(root, dir string) (string, error) {
	original := filepath.Join(root, filepath.FromSlash(m.file))
	src, err := os.ReadFile(original)
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(src), m.old); n != 1 {
		return "", fmt.Errorf("%s: the text to change occurs %d times, want once", m.file, n)
	}
	changed := filepath.Join(dir, filepath.Base(original))
	if err := os.WriteFile(changed, []byte(strings.Replace(string(src), m.old, m.new, 1)), 0o600); err != nil {
		return "", err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, overlay, 0o600)
}

// goTest runs tests of one package and returns what they print.
func goTest(ctx context.Context, root, overlay, pkg string, names []string, timeout time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// A test that hangs ends first, by its own timeout: that is a failure of the test.
	args := []string{"test", "-count=1", "-vet=off", "-timeout", (timeout / 3).String(), "-run", "^(" + strings.Join(names, "|") + ")$"}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+pkg)...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return string(out), context.Cause(ctx)
	case err == nil && strings.Contains(string(out), "no tests to run"):
		return string(out), errors.New("no tests to run")
	}
	return string(out), err
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
