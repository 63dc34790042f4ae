// Package bridgetest is the real-parts test equipment of GoBridge: a mosquitto
// broker as a fixture, a TCP fault proxy, a scripted fake broker, an independent
// MQTT v5 client, a checker that counts lost, duplicated and reordered messages
// from outside, and the bridge itself as a child process.
//
// Nothing here shares code with the bridge. Packets are encoded and decoded by
// paho.golang's packets package, never by the bridge's own codec, so that a
// mistake on one side cannot hide the same mistake on the other.
//
// Every constructor takes a [testing.TB] and undoes itself in its Cleanup. Every
// wait has a deadline. Functions that end a test (they say so) belong on the
// test's own goroutine; the others report through Errorf and may be called from
// any goroutine, a trigger of [Collector.OnCount] for instance.
package bridgetest
