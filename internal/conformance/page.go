package conformance

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Row is one promise of the page.
type Row struct {
	ID        string
	Statement string
	Note      string // what covers it besides tests, "" when tests alone do
	Tests     []Test // as the page names them
}

var (
	idForm = regexp.MustCompile(`^S[12]-[1-9]\d\d$`)

	// testsForm is what the last column holds for the tests of one package.
	testsForm = regexp.MustCompile(`^[a-z0-9/]+: (?:(?:Test|Fuzz|Example)\w*(?:, |$))+$`)
)

// later starts the note of a promise that nothing keeps yet.
const later = "later"

// separator stands between a note and the tests of each package.
const separator = "<br>"

// parseRow reads one line of the page. It returns false for a line that is no row
// of a promise.
func parseRow(line string) (Row, bool) {
	cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
	if len(cells) < 3 || !strings.HasPrefix(line, "|") {
		return Row{}, false
	}
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	if !idForm.MatchString(cells[0]) {
		return Row{}, false
	}
	r := Row{ID: cells[0], Statement: cells[1]}
	var notes []string
	for part := range strings.SplitSeq(strings.Join(cells[2:], "|"), separator) {
		part = strings.TrimSpace(part)
		if !testsForm.MatchString(part) {
			notes = append(notes, part)
			continue
		}
		pkg, names, _ := strings.Cut(part, ": ")
		for name := range strings.SplitSeq(names, ", ") {
			r.Tests = append(r.Tests, Test{pkg, name})
		}
	}
	r.Note = strings.TrimSpace(strings.Join(notes, " "))
	return r, true
}

// String returns the row as a line of the page.
func (r Row) String() string {
	return fmt.Sprintf("| %s | %s | %s |", r.ID, r.Statement, r.Covered())
}

// Covered returns the last column: the note, and the tests of each package.
func (r Row) Covered() string {
	var how []string
	if r.Note != "" {
		how = append(how, r.Note)
	}
	for i, t := range r.Tests {
		if i > 0 && t.Package == r.Tests[i-1].Package {
			how[len(how)-1] += ", " + t.Name
			continue
		}
		how = append(how, t.Package+": "+t.Name)
	}
	return strings.Join(how, separator)
}

// Rows returns the promises of the page in its order.
func Rows(page []byte) []Row {
	var rows []Row
	for line := range strings.Lines(string(page)) {
		if r, ok := parseRow(strings.TrimSuffix(line, "\n")); ok {
			rows = append(rows, r)
		}
	}
	return rows
}

// Update returns the page with the names of the tests that cover each row. A row
// that said "later" and has a test now says so no more.
func Update(page []byte, tests *Tests) []byte {
	var out bytes.Buffer
	for line := range strings.Lines(string(page)) {
		r, ok := parseRow(strings.TrimSuffix(line, "\n"))
		if !ok {
			out.WriteString(line)
			continue
		}
		r.Tests = tests.Covering[r.ID]
		if len(r.Tests) > 0 && strings.HasPrefix(r.Note, later) {
			r.Note = ""
		}
		out.WriteString(r.String() + "\n")
	}
	return out.Bytes()
}

// Check returns where the page and the tests disagree, one line a fault.
func Check(page []byte, tests *Tests) []string {
	faults := slices.Clone(tests.Faults)
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	known := map[string]bool{}
	for _, r := range Rows(page) {
		if known[r.ID] {
			fault("%s stands on the page twice", r.ID)
		}
		known[r.ID] = true
		covering := tests.Covering[r.ID]
		for _, t := range r.Tests {
			switch {
			case !tests.Names[t]:
				fault("%s names %s, which does not exist (go generate ./internal/conformance)", r.ID, t)
			case !slices.Contains(covering, t):
				fault("%s names %s, which does not say that it covers it (go generate ./internal/conformance)", r.ID, t)
			}
		}
		for _, t := range covering {
			if !slices.Contains(r.Tests, t) {
				fault("%s does not name %s, which covers it (go generate ./internal/conformance)", r.ID, t)
			}
		}
		switch {
		case len(covering) == 0 && r.Note == "":
			fault("%s is covered by no test and says nothing else (write // Covers: %s above its test, or a note)", r.ID, r.ID)
		case len(covering) > 0 && strings.HasPrefix(r.Note, later):
			fault("%s says %q, but %s covers it (go generate ./internal/conformance)", r.ID, later, covering[0])
		}
	}
	for id, covering := range tests.Covering {
		// Package guarantee looks after the rows of the guarantee matrix.
		if !known[id] && !strings.HasPrefix(id, "G") {
			fault("%s covers %s, which docs/conformance.md does not have", covering[0], id)
		}
	}
	slices.Sort(faults)
	return faults
}
