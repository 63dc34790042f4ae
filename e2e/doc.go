// Package e2e holds the tests of the daemon as a black box: the real binary as a
// child process between real brokers, killed, cut off and stopped under load.
//
// Loss, duplicates and order are judged from outside, by what a publisher sent and
// a subscriber saw. The bridge's own counters are read from /metrics to check that
// they tell the same story, never to excuse a difference.
//
// The counts of a run are short by default; LONG=1 takes the full ones.
package e2e
