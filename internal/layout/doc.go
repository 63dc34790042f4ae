// Package layout holds the rules of the source tree as tests: which package may
// import which, how long a file may grow, and which words must not stand in the
// repository.
//
// A rule is one line of a table; when a rule stands in the way of a good change,
// change the table in the same commit and say why there.
package layout
