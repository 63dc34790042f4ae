package layout

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const module = "github.com/gobridge/gobridge"

// room is a part of the tree with the imports that its code (not its tests) may
// have. Paths are relative to the module, "." is its root package; a trailing
// "/..." includes everything below; "transport/*/..." stands for one folder a
// technology, and a package of such a room may import its own folder only.
type room struct {
	path       string
	imports    []string // packages of the module
	thirdParty bool     // other modules, within the limits of libraries
	why        string
}

var rooms = []room{
	{".", []string{"metric"}, false, "the root package is the words and contracts: whoever implements them must not inherit a library"},
	{"metric", nil, false, "metric is a leaf that every package counts with"},
	{"engine/...", []string{".", "metric", "engine/..."}, true, "the engine knows contracts, never an adapter"},
	{"transport/*/...", []string{".", "metric"}, true, "a transport is one folder that stands alone: no engine, no store, no other transport"},
	{"store/*/...", []string{".", "metric"}, true, "a store is one folder that stands alone: no engine, no transport, no other store"},
	{"processor/...", []string{".", "metric", "processor/..."}, true, "processors see envelopes only"},
	{"credential/...", []string{".", "credential/..."}, true, "credentials know neither engine nor adapters"},
	{"config/...", []string{".", "config/..."}, true, "config knows no adapter: kinds hand it their option types"},
	{"guarantee", []string{"."}, false, "guarantee judges a spec by the contracts: adapters hand it what their options mean"},
	{"admin/...", []string{".", "metric", "admin/..."}, true, "admin shows what the contracts report, it does not reach into parts"},
	{"kinds", []string{".", "transport/...", "store/...", "processor/...", "credential/..."}, false, "kinds is the one list of what is built in, and nothing more"},
	{"bridgetest/...", []string{".", "metric", "bridgetest/..."}, true, "test equipment shares no code with what it tests"},
	{"cmd/...", []string{".", "metric", "engine/...", "transport/...", "store/...", "processor/...", "credential/...", "config/...", "guarantee", "admin/...", "kinds", "examples", "cmd/..."}, true, "the daemon puts the parts together, test equipment stays out of it"},
	{"bench/...", []string{"./..."}, true, "measurements may reach anywhere"},
	{"chaos", nil, false, "a chaos run drives the binary from outside: the package is its tests"},
	{"e2e", nil, false, "end-to-end tests drive the binary from outside: the package is its tests"},
	{"examples/...", []string{".", "metric", "engine/...", "transport/...", "store/...", "processor/...", "credential/...", "config/...", "admin/...", "kinds"}, true, "examples use what an embedder can use"},
	{"internal/...", []string{"internal/..."}, false, "the repository's own tools run before anything else builds"},
}

// library limits a third-party module to the rooms that exist to wrap it.
type library struct {
	path  string // import path prefix
	rooms []string
	tests bool // tests anywhere may import it
	why   string
}

var libraries = []library{
	{"github.com/eclipse/paho.golang", []string{"transport/mqtt/...", "bridgetest/...", "bench/...", "chaos", "e2e"}, false, "SDK types stay inside their transport; tests speak MQTT through bridgetest"},
	{"github.com/ncruces/go-sqlite3", []string{"store/sqlite/...", "bench/..."}, true, "SQLite stays inside its store"},
	{"github.com/gorilla/websocket", []string{"transport/mqtt/...", "bridgetest/..."}, true, "dialling is the transport's business"},
	{"github.com/mochi-mqtt/server", []string{"cmd/...", "bridgetest/...", "bench/..."}, true, "the embedded broker is for demo and tests"},
	{"go.yaml.in/yaml", []string{"config/...", "cmd/...", "bench/..."}, true, "only config reads YAML; an opener gets its options decoded"},
	{"github.com/invopop/jsonschema", []string{"config/..."}, true, "the schema is made where the config is defined"},
	{"github.com/prometheus", []string{"admin/...", "bench/..."}, true, "parts count with package metric; only admin knows how that is exposed"},
	{"github.com/fsnotify/fsnotify", []string{"credential/...", "cmd/..."}, false, "what changes on disk is watched where it is read"},
	{"github.com/spf13/cobra", []string{"cmd/...", "bench/..."}, false, "commands are in cmd"},
	{"github.com/HdrHistogram", []string{"bench/...", "cmd/...", "bridgetest/..."}, true, "percentiles are for measurements"},
	{"github.com/google/go-cmp", []string{"bridgetest/..."}, true, "test library"},
	{"go.uber.org/goleak", []string{"bridgetest/..."}, true, "test library"},
	{"pgregory.net/rapid", []string{"bridgetest/..."}, true, "test library"},
	{"github.com/rogpeppe/go-internal", []string{"bridgetest/..."}, true, "test library"},
	{"github.com/santhosh-tekuri/jsonschema", nil, true, "test library"},
}

// only names the third-party modules of rooms that may have a few.
var only = map[string][]string{
	"engine/...": {"golang.org/x/sync"},
	"config/...": {"go.yaml.in/yaml", "github.com/invopop/jsonschema"},
	"admin/...":  {"github.com/prometheus"},
}

// pkg is what `go list -json` tells of one package.
type pkg struct {
	ImportPath   string
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func TestImportArrows(t *testing.T) {
	t.Parallel()
	for _, platform := range []string{"linux", "windows", "darwin"} {
		pkgs, err := list(t, platform)
		if err != nil {
			t.Fatalf("go list for %s: %v", platform, err)
		}
		for _, fault := range wrongArrows(pkgs) {
			t.Errorf("%s: %s", platform, fault)
		}
	}
}

// list returns the module's packages with everything that they depend on.
func list(t *testing.T, goos string) ([]pkg, error) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps",
		"-json=ImportPath,Standard,Imports,TestImports,XTestImports", module+"/...")
	// Without cgo, so that the answer does not depend on the machine's compiler.
	cmd.Env = append(cmd.Environ(), "GOOS="+goos, "GOARCH=amd64", "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, stderr.String())
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs, nil
		} else if err != nil {
			return nil, err
		}
		pkgs = append(pkgs, p)
	}
}

// wrongArrows checks direct imports. That is enough: every package of the module
// is checked, so a forbidden package cannot be reached through an allowed one.
func wrongArrows(pkgs []pkg) []string {
	var faults []string
	for _, p := range pkgs {
		from, ours := relative(p.ImportPath)
		if !ours {
			continue
		}
		i := slices.IndexFunc(rooms, func(r room) bool { return matches(r.path, from) })
		if i < 0 {
			faults = append(faults, fmt.Sprintf("package %s is in no room: say in rooms what it may import", from))
			continue
		}
		for _, imported := range p.Imports {
			if why := forbidden(rooms[i], from, imported); why != "" {
				faults = append(faults, fmt.Sprintf("%s imports %s: %s", from, imported, why))
			}
		}
		for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
			if lib, ok := libraryOf(imported); ok && !lib.tests && !matchesAny(lib.rooms, from) {
				faults = append(faults, fmt.Sprintf("a test of %s imports %s: %s", from, imported, lib.why))
			}
		}
	}
	return faults
}

// forbidden returns the rule that the import breaks, "" when it is fine.
func forbidden(r room, from, imported string) string {
	to, ours := relative(imported)
	switch {
	case ours && (matchesAny(r.imports, to) || folder(r.path, from) != "" && folder(r.path, from) == folder(r.path, to)):
		return ""
	case ours:
		return r.why
	case imported == "testing" && !matchesAny([]string{"bridgetest/...", "bench/..."}, from):
		return "test code stays in test files and bridgetest"
	case standard(imported):
		return ""
	case !r.thirdParty:
		return r.why + " (standard library only)"
	}
	if allowed, limited := only[r.path]; limited && !slices.ContainsFunc(allowed, func(prefix string) bool { return under(prefix, imported) }) {
		return fmt.Sprintf("%s (third party here: %s)", r.why, strings.Join(allowed, ", "))
	}
	if lib, ok := libraryOf(imported); ok && !matchesAny(lib.rooms, from) {
		return lib.why
	}
	return ""
}

func libraryOf(imported string) (library, bool) {
	i := slices.IndexFunc(libraries, func(l library) bool { return under(l.path, imported) })
	if i < 0 {
		return library{}, false
	}
	return libraries[i], true
}

// relative returns the path of a package within the module.
func relative(path string) (string, bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// standard tells the standard library's import paths, whose first element has no
// dot.
func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// folder returns the technology folder of path ("transport/mqtt") when pattern has
// a "*" for it, else "".
func folder(pattern, path string) string {
	group, _, ok := strings.Cut(pattern, "/*/")
	if !ok || !under(group, path) || path == group {
		return ""
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(path, group+"/"), "/")
	return group + "/" + name
}

func matches(pattern, path string) bool {
	if pattern == "./..." {
		return true
	}
	if strings.Contains(pattern, "/*/") {
		return folder(pattern, path) != ""
	}
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return under(prefix, path)
	}
	return pattern == path
}

func matchesAny(patterns []string, path string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, path) })
}

func under(prefix, path string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

func TestImportArrowsCatchPlantedFaults(t *testing.T) {
	t.Parallel()
	const test = "test: " // marks an import of a test file
	for _, c := range []struct{ from, imported, want string }{
		{".", "metric", ""},
		{".", "context", ""},
		{".", "engine", "words and contracts"},
		{".", "github.com/google/uuid", "standard library only"},
		{"metric", ".", "leaf"},
		{"metric", "github.com/prometheus/client_golang/prometheus", "standard library only"},
		{"engine", "golang.org/x/sync/errgroup", ""},
		{"engine/outbox", "engine", ""},
		{"engine", "transport/mqtt", "never an adapter"},
		{"engine", "config", "never an adapter"},
		{"engine", "github.com/google/uuid", "third party here: golang.org/x/sync"},
		{"transport/mqtt", "transport/mqtt/wire", ""},
		{"transport/mqtt/wire", "transport/mqtt", ""},
		{"transport/mqtt", "github.com/eclipse/paho.golang/autopaho", ""},
		{"transport/mqtt", "engine", "stands alone"},
		{"transport/mqtt", "transport/sqs", "stands alone"},
		{"transport/mqtt", "store/memory", "stands alone"},
		{"transport/mqtt", "transport/mqttx", "stands alone"},
		{"transport/memory", "github.com/eclipse/paho.golang/packets", "SDK types"},
		{"transport/sqs", "go.yaml.in/yaml/v4", "only config reads YAML"},
		{"store/memory", ".", ""},
		{"store/memory", "engine", "stands alone"},
		{"store/memory", "store/sqlite", "stands alone"},
		{"processor", "engine", "envelopes only"},
		{"credential", "transport/mqtt", "neither engine nor adapters"},
		{"config", "go.yaml.in/yaml/v4", ""},
		{"config", "transport/mqtt", "knows no adapter"},
		{"config", "kinds", "knows no adapter"},
		{"config", "github.com/spf13/viper", "third party here"},
		{"admin", "github.com/prometheus/client_golang/prometheus/promhttp", ""},
		{"admin", "engine", "reach into parts"},
		{"admin", "github.com/gin-gonic/gin", "third party here"},
		{"kinds", "transport/mqtt", ""},
		{"kinds", "engine", "nothing more"},
		{"kinds", "github.com/google/uuid", "nothing more"},
		{"bridgetest", "testing", ""},
		{"bridgetest", "github.com/eclipse/paho.golang/packets", ""},
		{"bridgetest", "transport/mqtt", "shares no code"},
		{"cmd/gobridge", "github.com/spf13/cobra", ""},
		{"cmd/gobridge", "bridgetest", "test equipment"},
		{"cmd/gobridge", "testing", "test code"},
		{"cmd/gobridge", "github.com/google/go-cmp/cmp", "test library"},
		{"examples/embed", "internal/testall", "an embedder can use"},
		{"bench", "engine", ""},
		{"internal/testall", "engine", "before anything else builds"},
		{"engine", test + "github.com/google/go-cmp/cmp", ""},
		{"engine", test + "transport/memory", ""},
		{"engine", test + "github.com/eclipse/paho.golang/packets", "through bridgetest"},
		{"engine", test + "github.com/spf13/cobra", "commands are in cmd"},
		{"util", "fmt", "in no room"},
	} {
		imported, inTest := strings.CutPrefix(c.imported, test)
		if standard(imported) && !slices.Contains([]string{"context", "testing", "fmt"}, imported) {
			imported = module + "/" + imported
		}
		p := pkg{ImportPath: module + "/" + c.from}
		if c.from == "." {
			p.ImportPath = module
		}
		if inTest {
			p.XTestImports = []string{imported}
		} else {
			p.Imports = []string{imported}
		}
		faults := wrongArrows([]pkg{p})
		if c.want == "" {
			if diff := cmp.Diff([]string(nil), faults); diff != "" {
				t.Errorf("%s -> %s is allowed (-want +got):\n%s", c.from, c.imported, diff)
			}
			continue
		}
		if len(faults) != 1 || !strings.Contains(faults[0], c.want) || !strings.Contains(faults[0], c.from) {
			t.Errorf("%s -> %s: got %q, want one fault with %q", c.from, c.imported, faults, c.want)
		}
	}
}
