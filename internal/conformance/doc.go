// Package conformance ties docs/conformance.md to the tests: the page lists what
// the bridge promises for MQTT, one row with an id for each promise, and a test
// names the ids that it proves in a comment above it or in a row of its table:
//
//	// Covers: S1-109, S2-401
//
// Ids of the guarantee matrix (G05) stand there as well; package guarantee ties them to
// docs/guarantees.md.
//
// The names of the tests on the page come from these comments:
//
//	go generate ./internal/conformance
//
// The package's own test fails when page and comments disagree.
package conformance

//go:generate go test -run ^TestPageAgreesWithTheTests$ -update .
