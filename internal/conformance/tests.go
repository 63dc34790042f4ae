package conformance

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Test is one test function, with the path of its package in the module; the root
// package is "gobridge".
type Test struct{ Package, Name string }

func (t Test) String() string { return t.Package + "." + t.Name }

// Tests is what the test files of the module say.
type Tests struct {
	Names    map[Test]bool     // every test, fuzz target and example
	Covering map[string][]Test // by id, sorted
	Faults   []string          // comments that cannot be read
}

var (
	coversForm = regexp.MustCompile(`^// Covers: ((?:S[12]-\d{3}|G\d\d)(?:, (?:S[12]-\d{3}|G\d\d))*)$`)
	mention    = regexp.MustCompile(`\bS[12]-\d{3}\b|^// Covers:`)
)

// ReadTests reads every test file of the module in fsys.
func ReadTests(fsys fs.FS) (*Tests, error) {
	tests := &Tests{Names: map[Test]bool{}, Covering: map[string][]Test{}}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == ".git" || d.Name() == "bin"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		src, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		return tests.read(name, src)
	})
	if err != nil {
		return nil, err
	}
	for id, covering := range tests.Covering {
		slices.SortFunc(covering, func(a, b Test) int {
			return cmp.Or(strings.Compare(a.Package, b.Package), strings.Compare(a.Name, b.Name))
		})
		tests.Covering[id] = slices.Compact(covering)
	}
	return tests, nil
}

func (tests *Tests) read(name string, src []byte) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	pkg := path.Dir(name)
	if pkg == "." {
		pkg = "gobridge"
	}
	type span struct {
		from, to token.Pos
		test     Test
	}
	var spans []span
	for _, decl := range file.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || !isTest(fn.Name.Name) {
			continue
		}
		from := fn.Pos()
		if fn.Doc != nil {
			from = fn.Doc.Pos()
		}
		t := Test{pkg, fn.Name.Name}
		tests.Names[t] = true
		spans = append(spans, span{from, fn.End(), t})
	}
	for _, group := range file.Comments {
		for _, c := range group.List {
			if !mention.MatchString(c.Text) {
				continue
			}
			where := fset.Position(c.Pos())
			m := coversForm.FindStringSubmatch(c.Text)
			i := slices.IndexFunc(spans, func(s span) bool { return s.from <= c.Pos() && c.Pos() < s.to })
			switch {
			case m == nil:
				tests.Faults = append(tests.Faults, fmt.Sprintf("%s:%d: %q is not read (write // Covers: S1-101, S2-202 on a line of its own)", name, where.Line, c.Text))
			case i < 0:
				tests.Faults = append(tests.Faults, fmt.Sprintf("%s:%d: %q belongs to no test (put it directly above the function)", name, where.Line, c.Text))
			default:
				for id := range strings.SplitSeq(m[1], ", ") {
					tests.Covering[id] = append(tests.Covering[id], spans[i].test)
				}
			}
		}
	}
	return nil
}

func isTest(name string) bool {
	return name != "TestMain" && (strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") || strings.HasPrefix(name, "Example"))
}
