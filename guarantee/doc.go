// Package guarantee holds the guarantee matrix: what the bridge owes for each kind of
// message, as rows with an id. It is the one source of docs/guarantees.md and of
// gobridge explain, and the ids are those that tests name:
//
//	// Covers: G05, G06
//
// Rows speak of packets, not of routes: a publisher's QoS 0 packet that comes through
// a QoS 1 filter falls under the rows of QoS 0. No loss means that the bridge never
// drops the message. It is not exactly-once: every row may repeat one.
//
// The page is written by
//
//	go generate ./guarantee
package guarantee

//go:generate go test -run ^TestPageIsFresh$ -update .
