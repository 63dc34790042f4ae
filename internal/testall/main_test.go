package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// runIn runs testall in a module of its own with the given test files and returns
// its exit code and what it printed.
func runIn(t *testing.T, files map[string]string, args ...string) (int, string) {
	dir := t.TempDir()
	files["go.mod"] = "module sample\n\ngo 1.26.0\n"
	for name, content := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	var stdout, stderr bytes.Buffer
	// Without the race detector these small runs need no slow link.
	code := run(append([]string{"-race=false"}, args...), &stdout, &stderr)
	t.Logf("exit %d\n%s%s", code, &stdout, &stderr)
	return code, stdout.String()
}

func testFile(pkg, body string) string {
	return "package " + pkg + "\n\nimport \"testing\"\n\n" + body + "\n"
}

const passing = "func TestGood(t *testing.T) { t.Log(\"quiet\") }"

func lastLine(s string) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return lines[len(lines)-1]
}

func TestPassingRunEndsWithGoTestsOwnLines(t *testing.T) {
	t.Setenv("GOBRIDGE_REQUIRE_MOSQUITTO", "1")
	if why := noRace(t.Context()); why != "" {
		t.Setenv("GOBRIDGE_REQUIRE_MOSQUITTO", "")
		t.Skip(notRun + "the race detector (" + why + ")")
	}
	code, out := runIn(t, map[string]string{"a/a_test.go": testFile("a", passing), "b/b.go": "package b\n"})
	if code != 0 {
		t.Errorf("exit %d, want 0", code)
	}
	if strings.Contains(out, "quiet") || strings.Contains(out, "=== RUN") {
		t.Error("the output of a test that passed is shown")
	}
	if !strings.Contains(out, "ok  \tsample/a") || !strings.Contains(out, "sample/b") {
		t.Error("a package has no line")
	}
	if last := lastLine(out); !strings.Contains(last, "sample/") {
		t.Errorf("the last line is %q, want that of a package", last)
	}
}

func TestFailuresAreShownAndReported(t *testing.T) {
	for name, c := range map[string]struct{ body, want string }{
		"failed test":    {`func TestBad(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Error("broken here") }) }`, "broken here"},
		"panic":          {`func TestBad(t *testing.T) { panic("broken here") }`, "panic: broken here"},
		"does not build": {`func TestBad(t *testing.T) { undefinedName() }`, "undefined: undefinedName"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out := runIn(t, map[string]string{
				"a/a_test.go": testFile("a", passing+"\n"+c.body),
				"b/b_test.go": testFile("b", passing),
			})
			if code == 0 {
				t.Error("exit 0")
			}
			if !strings.Contains(out, c.want) || !strings.Contains(out, "FAIL\tsample/a") || !strings.Contains(out, "ok  \tsample/b") {
				t.Errorf("want %q and the lines of both packages", c.want)
			}
			if strings.Contains(out, "quiet") && name == "failed test" {
				t.Error("the output of a test that passed is shown")
			}
		})
	}
}

func TestMissingPartsAreListedAtTheEnd(t *testing.T) {
	files := func() map[string]string {
		return map[string]string{"a/a_test.go": testFile("a", passing+`
func TestOne(t *testing.T) { t.Skip("NOT RUN: no broker") }
func TestTwo(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Skip("NOT RUN: no broker") }) }
func TestLong(t *testing.T) { t.Skip("LONG=1 only") }`)}
	}
	t.Run("allowed", func(t *testing.T) {
		t.Setenv("GOBRIDGE_REQUIRE_MOSQUITTO", "")
		code, out := runIn(t, files())
		if code != 0 {
			t.Errorf("exit %d, want 0", code)
		}
		if !strings.HasSuffix(out, "NOT RUN: no broker\n    sample/a.TestOne\n    sample/a.TestTwo/sub\n") && noRace(t.Context()) == "" {
			t.Error("the list of what did not run is not the end")
		}
		if !strings.Contains(out, "--- SKIP: TestLong: a_test.go:8: LONG=1 only\n") {
			t.Error("the skipped test is not shown")
		}
	})
	t.Run("required", func(t *testing.T) {
		t.Setenv("GOBRIDGE_REQUIRE_MOSQUITTO", "1")
		if code, _ := runIn(t, files()); code == 0 {
			t.Error("exit 0 although a required part is missing")
		}
	})
}

func TestFlagsAndPackagesArePassedThrough(t *testing.T) {
	t.Setenv("GOBRIDGE_REQUIRE_MOSQUITTO", "")
	files := map[string]string{
		"a/a_test.go": testFile("a", `func TestA(t *testing.T) { t.Log("seen a") }`),
		"b/b_test.go": testFile("b", `func TestB(t *testing.T) { t.Log("seen b") }`),
	}
	_, out := runIn(t, files, "-v", "-count=2", "./a")
	if n := strings.Count(out, "seen a"); n != 2 {
		t.Errorf("the test of a ran %d times, want 2", n)
	}
	if strings.Contains(out, "seen b") {
		t.Error("b was tested without being asked for")
	}
}

func TestUnknownFlagFails(t *testing.T) {
	code, _ := runIn(t, map[string]string{"sample.go": "package sample\n", "a/a_test.go": testFile("a", passing)}, "-nosuchflag")
	if code == 0 {
		t.Error("exit 0 without a test run")
	}
}

func TestRaceDetectorNeedsACompiler(t *testing.T) {
	t.Setenv("CC", "no-such-compiler")
	if why := noRace(t.Context()); !strings.Contains(why, "no-such-compiler") {
		t.Errorf("got %q, want the missing compiler", why)
	}
	gocmd, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("CC", gocmd) // any program that exists
	t.Setenv("CGO_ENABLED", "0")
	if why := noRace(t.Context()); why != "CGO_ENABLED=0" {
		t.Errorf("got %q, want CGO_ENABLED=0", why)
	}
}
