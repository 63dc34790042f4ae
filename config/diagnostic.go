package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gobridge/gobridge"
)

// Diagnostic is one fault of a config file, or a warning about it.
type Diagnostic struct {
	// File is the name given to [Load].
	File string
	// Line and Column are 1-based; a fault of the whole file has 1:1.
	Line   int
	Column int
	// Problem holds path, text, hint, and whether this is a warning.
	gobridge.Problem
}

// String is one line: file:line:col: path: what (hint).
func (d Diagnostic) String() string {
	if d.Path == "" {
		d.Path = "config"
	}
	kind := ""
	if d.Warning {
		kind = "warning: "
	}
	return fmt.Sprintf("%s:%d:%d: %s%s", d.File, d.Line, d.Column, kind, d.Problem)
}

// HasErrors reports whether one of the diagnostics is an error.
func HasErrors(ds []Diagnostic) bool {
	return slices.ContainsFunc(ds, func(d Diagnostic) bool { return !d.Warning })
}

// position is a place in the file, 1-based.
type position struct{ line, column int }

// maxDiagnostics bounds the report of a file that is no config at all.
const maxDiagnostics = 500

// report collects the diagnostics of one file.
type report struct {
	file string
	list []Diagnostic
	// faulty holds the paths that were reported by the decoder; problems that only
	// follow from them are left out.
	faulty map[string]bool
}

func (r *report) add(at position, p gobridge.Problem) {
	switch {
	case len(r.list) == maxDiagnostics:
		p = gobridge.Problem{What: fmt.Sprintf("more than %d faults, the rest is left out", maxDiagnostics)}
	case len(r.list) > maxDiagnostics:
		return
	}
	d := Diagnostic{File: r.file, Line: max(at.line, 1), Column: max(at.column, 1), Problem: p}
	// A fault inside an aliased block is met once for each alias.
	if !slices.Contains(r.list, d) {
		r.list = append(r.list, d)
	}
}

// explained reports whether the decoder has already reported path or something
// that contains it.
func (r *report) explained(path string) bool {
	for path != "" {
		if r.faulty[path] {
			return true
		}
		path = parent(path)
	}
	return false
}

// sorted returns the diagnostics in the order of the file, errors first where
// both stand at one place.
func (r *report) sorted() []Diagnostic {
	slices.SortStableFunc(r.list, func(a, b Diagnostic) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column), compareBool(a.Warning, b.Warning))
	})
	return r.list
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// parent cuts the last step off a path: routes[0].policy, routes[0], routes, "".
func parent(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

// join appends a key to a path.
func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
