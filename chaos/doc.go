// Package chaos hunts for broken promises: a run makes a bridge of a random shape
// from a seed, loads it, brings down whatever a schedule from the same seed says, and
// judges every single message by the guarantee matrix. The package is its tests.
//
//	make chaos                          # a minute, a fresh seed
//	make chaos DURATION=10m SEED=17     # rounds of half a minute, seeds 17, 18, ...
//	make chaos PLANT=ack-before-send    # a planted bug, to see it found
//
// The bridge is the real program with one difference: its SQLite files keep in memory
// what was not synced, so that kill -9 takes with it what a loss of power would.
package chaos
