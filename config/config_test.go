package config_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/config"
	"github.com/gobridge/gobridge/examples"
	"github.com/gobridge/gobridge/kinds"
)

var update = flag.Bool("update", false, "rewrite the expected files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// secret stands in the environment of the test configs and must show up nowhere.
const secret = "S3cr3t!$@/x"

// setenv sets the variables that the test configs name.
func setenv(t *testing.T) {
	t.Helper()
	for name, value := range map[string]string{
		"TEST_WORD":   "word",
		"TEST_EMPTY":  "",
		"TEST_SECRET": secret,
		"TEST_YAML":   "[{id: x}]",
		"TEST_KEY":    "0123456789abcdef",
		"TEST_NUMBER": "20",
		"TEST_BOOL":   "false",
		"TEST_ONE":    "1",
		"TEST_TWICE":  "${TEST_WORD}",
	} {
		t.Setenv(name, value)
	}
}

// configs returns the test configs whose name matches, and the text of each.
func configs(t *testing.T, pattern string) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob(filepath.Join("testdata", pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("no test configs %s: %v", pattern, err)
	}
	files := map[string][]byte{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(name)] = data
	}
	return files
}

// sound returns the configs that have no error: the good ones and the examples.
func sound(t *testing.T) map[string][]byte {
	t.Helper()
	files := configs(t, "*.good.yaml")
	all, err := examples.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		files["examples/"+e.Name] = e.Config
	}
	return files
}

// lines renders diagnostics, without the warnings that every config of this
// version has.
func lines(diags []config.Diagnostic) string {
	var out strings.Builder
	for _, d := range diags {
		if d.Warning && strings.HasPrefix(d.Path, "stores.") {
			continue
		}
		fmt.Fprintln(&out, d)
	}
	return out.String()
}

func TestEveryFaultIsReportedWithItsPlace(t *testing.T) {
	setenv(t)
	for name, data := range configs(t, "*.yaml") {
		t.Run(name, func(t *testing.T) {
			file, diags := config.Load(name, data, kinds.All())
			bad := strings.HasSuffix(name, ".bad.yaml")
			if config.HasErrors(diags) != bad || (file == nil) != bad {
				t.Errorf("file %v with errors %v, want a bad config: %v", file != nil, config.HasErrors(diags), bad)
			}
			got := lines(diags)
			if strings.Contains(got, "S3cr3t") {
				t.Errorf("a secret in the report:\n%s", got)
			}
			expected := filepath.Join("testdata", strings.TrimSuffix(name, ".yaml")+".txt")
			if *update {
				if err := os.WriteFile(expected, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(expected)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("diagnostics (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVariablesAreTextAndExpandOnce(t *testing.T) {
	setenv(t)
	file, diags := config.Load("variables.good.yaml", configs(t, "variables.good.yaml")["variables.good.yaml"], kinds.All())
	if file == nil {
		t.Fatal(diags)
	}
	got := []string{file.Spec.Bridge.ID, file.Spec.Bridge.InstanceID, file.Spec.Routes[0].Bindings[0].ID, file.HTTP.Listen}
	want := []string{"word-7", "[{id: x}]", "up ${TEST_WORD}", ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	out, err := file.Show()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"broker_url: tcp://127.0.0.1:1883", "client_id: $${TEST_WORD} costs 5$", "receive_maximum: 20", "keep_alive: 20",
		"clean_start: false", "connect_timeout: 20s",
	} {
		if !strings.Contains(string(out), line+"\n") {
			t.Errorf("config show has no line %q:\n%s", line, out)
		}
	}
}

func TestShowIsAConfigThatMeansTheSame(t *testing.T) {
	setenv(t)
	for name, data := range sound(t) {
		t.Run(name, func(t *testing.T) {
			file, diags := config.Load(name, data, kinds.All())
			if file == nil {
				t.Fatal(diags)
			}
			first, err := file.Show()
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(first), "S3cr3t") || strings.Contains(string(first), "0123456789abcdef") {
				t.Errorf("a secret in config show:\n%s", first)
			}
			again, diags := config.Load("shown.yaml", first, kinds.All())
			if again == nil {
				t.Fatalf("config show does not validate:\n%s\n%s", lines(diags), first)
			}
			second, err := again.Show()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(first), string(second)); diff != "" {
				t.Errorf("shown twice (-first +second):\n%s", diff)
			}
			if masked := strings.Contains(string(first), gobridge.Redacted); again.Redacted != masked || file.Redacted {
				t.Errorf("Redacted = %v, then %v; masked %v", file.Redacted, again.Redacted, masked)
			}
		})
	}
}

func TestHostileFilesAreRefused(t *testing.T) {
	t.Parallel()
	var bomb strings.Builder
	bomb.WriteString("bridge: {id: x}\nroutes:\n- policy: &p0 {max_in_flight: 1}\n- bindings: &b [" +
		strings.Repeat("{id: x, sender: {id: y, session_id: z}},", 1000) + "]\n")
	for range 200 {
		bomb.WriteString("- bindings: *b\n")
	}
	tests := map[string]struct{ data, want string }{
		"large":            {strings.Repeat("#", 4<<20+1), "x:1:1: config: larger than 4 MiB (this is hardly a config)"},
		"deep flow":        {"bridge: " + strings.Repeat("[", 1000), "exceeded max depth of 64"},
		"deep block":       {nested(200), "exceeded max depth of 64"},
		"alias bomb":       {bomb.String(), "aliases stand for too many values (write the values out)"},
		"alias of itself":  {"routes: &r [ { bindings: *r } ]", "routes[0].bindings: alias of a block that contains it"},
		"too many faults":  {manyKeys(2000), "config: more than 500 faults, the rest is left out"},
		"control in key":   {"\"a\\nb\": 1", `unknown key "a?b"`},
		"not UTF-8":        {"bridge: \xff", "not valid YAML: invalid leading UTF-8 octet"},
		"very long key":    {strings.Repeat("k", 900) + ": 1", `unknown key "` + strings.Repeat("k", 60) + `..."`},
		"no key in a list": {"- a\n- b", "x:1:1: config: expected a block of keys, found a list"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, diags := config.Load("x", []byte(tt.data), kinds.All())
			if got := lines(diags); file != nil || !strings.Contains(got, tt.want) {
				t.Errorf("got %.2000s\nwant a line with %q", got, tt.want)
			}
		})
	}
}

func nested(n int) string {
	var out strings.Builder
	for i := range n {
		out.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return out.String()
}

func manyKeys(n int) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, "zzz%d: 1\n", i)
	}
	return out.String()
}

func FuzzLoad(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, diags := config.Load("fuzz", data, kinds.All())
		last := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") + 2
		for _, d := range diags {
			if s := d.String(); strings.ContainsAny(s, "\r\n") {
				t.Errorf("more than one line: %q", s)
			}
			if d.Line < 1 || d.Line > last || d.Column < 1 {
				t.Errorf("%s: outside the file of %d lines", d, last)
			}
		}
		if (file == nil) != config.HasErrors(diags) {
			t.Fatalf("file %v, diagnostics %v", file, diags)
		}
		if file == nil {
			return
		}
		out, err := file.Show()
		if err != nil {
			t.Fatal(err)
		}
		if again, diags := config.Load("shown", out, kinds.All()); again == nil {
			t.Errorf("config show does not validate:\n%s\n%s", lines(diags), out)
		}
	})
}
