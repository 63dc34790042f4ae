package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// notRun begins the skip message of a test that lacks a real part.
const notRun = "NOT RUN: "

// event is one line of `go test -json` (go doc test2json).
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// report turns the events back into what go test prints without -json: a line for
// each package, and the output of failed tests. Skipped tests get a line too.
type report struct {
	out     io.Writer
	verbose bool
	pkgs    map[string]*packageOutput
	absent  []absence
}

// packageOutput is the output of a package whose tests still run, in order.
type packageOutput struct {
	events []event
	quiet  map[string]bool   // tests that passed or were skipped
	skips  map[string]string // tests that were skipped, with their messages
}

// absence is a missing part with the tests that wanted it.
type absence struct {
	what  string
	tests []string
}

func (r *report) read(in io.Reader) error {
	r.pkgs = map[string]*packageOutput{}
	br := bufio.NewReader(in)
	for {
		line, err := br.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(r.out, "%s", line) // go itself has something to say
			} else {
				r.add(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *report) add(e event) {
	if e.Action == "build-output" || r.verbose && e.Action == "output" {
		fmt.Fprint(r.out, e.Output)
	}
	if e.Package == "" {
		return
	}
	p := r.pkgs[e.Package]
	if p == nil {
		p = &packageOutput{quiet: map[string]bool{}, skips: map[string]string{}}
		r.pkgs[e.Package] = p
	}
	switch e.Action {
	case "output":
		p.events = append(p.events, e)
	case "pass", "skip", "fail":
		if e.Test == "" {
			r.finish(e, p)
			return
		}
		p.quiet[e.Test] = e.Action != "fail"
		if e.Action == "skip" {
			r.skipped(e, p)
		}
	}
}

// skipped remembers the message of a skipped test.
func (r *report) skipped(e event, p *packageOutput) {
	var said strings.Builder
	for _, o := range p.events {
		if o.Test == e.Test && !strings.HasPrefix(o.Output, "=== ") && !strings.HasPrefix(strings.TrimSpace(o.Output), "--- ") {
			said.WriteString(o.Output)
		}
	}
	message := strings.Join(strings.Fields(said.String()), " ")
	if _, what, ok := strings.Cut(message, notRun); ok {
		r.missing(what, e.Package+"."+e.Test)
		return
	}
	p.skips[e.Test] = message
}

// finish prints what go test prints when a package is done, and forgets it.
func (r *report) finish(done event, p *packageOutput) {
	delete(r.pkgs, done.Package)
	if r.verbose {
		return
	}
	for _, test := range sortedKeys(p.skips) {
		fmt.Fprintf(r.out, "--- SKIP: %s: %s\n", test, p.skips[test])
	}
	for _, o := range p.events {
		switch {
		case o.Test != "" && p.quiet[o.Test]:
		case done.Action == "fail" || isSummary(o.Output):
			fmt.Fprint(r.out, o.Output)
		}
	}
}

// isSummary tells the closing line of a package that did not fail.
func isSummary(line string) bool {
	return strings.HasPrefix(line, "ok  \t") || strings.HasPrefix(line, "?   \t") || strings.HasPrefix(line, "\t")
}

func (r *report) missing(what, test string) {
	i := slices.IndexFunc(r.absent, func(a absence) bool { return a.what == what })
	if i < 0 {
		i = len(r.absent)
		r.absent = append(r.absent, absence{what: what})
	}
	r.absent[i].tests = append(r.absent[i].tests, test)
}

// end prints what did not run and reports whether there was any.
func (r *report) end() bool {
	for _, pkg := range sortedKeys(r.pkgs) { // the run ended before the package did
		r.finish(event{Action: "fail", Package: pkg}, r.pkgs[pkg])
	}
	if len(r.absent) == 0 {
		return false
	}
	slices.SortFunc(r.absent, func(a, b absence) int { return cmp.Compare(a.what, b.what) })
	fmt.Fprintln(r.out)
	for _, a := range r.absent {
		fmt.Fprintf(r.out, "%s%s\n", notRun, a.what)
		for _, test := range slices.Sorted(slices.Values(a.tests)) {
			fmt.Fprintf(r.out, "    %s\n", test)
		}
	}
	return true
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
