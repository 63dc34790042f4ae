// Package gobridge holds the words and the contracts of the bridge: the
// [Envelope] that travels, the [Delivery] that must be settled, the contracts
// of transports and stores, the typed [Error], and the [Spec] that describes a
// bridge. It depends on the standard library alone.
//
// A message takes one way through the system:
//
//	Receiver -> route slot -> processors -> binding -> Sender -> confirmed -> Ack
//
// A source delivery is acknowledged only after the destination confirmed it (or
// a durable store holds it). Nothing on that way waits: a receiver offers
// deliveries in receive order, the route hands messages to senders in the same
// order, and the outcome of each send comes back as a completion. Work is done
// in bursts on the goroutines that read the sockets; the end of a burst is the
// moment at which buffered writes go out ([Sender.Flush], [Receiver.Flush]).
//
// The engine lives in package engine, the transports below transport/, the
// stores below store/, and package kinds lists everything that is built in.
//
// # Embedding
//
// Fill a [Spec], give it to engine.New with the kinds of kinds.All, and call Run on
// the engine: it moves messages until its context ends. What the spec leaves out
// gets the defaults of docs/config.md. SessionSpec.Options is the options struct of
// the transport, such as mqtt.NewSessionOptions with its BrokerURL set;
// StoreSpec.Type is [StoreSQLite] unless it says [StoreMemory]. A whole program is
// examples/embed.
package gobridge
