// Package engine moves messages: it opens the sessions that a spec names, admits
// deliveries into routes, hands them to senders, holds what cannot go out now,
// and settles each delivery exactly once.
//
// A route has no goroutine on the way of a message. Its state stands under one
// mutex, and its steps run on the goroutines that read the sockets: the
// receiver's when deliveries come in ([gobridge.Emit]), the sender's when
// outcomes come back ([gobridge.Completion]). Lock order: a route's mutex, then
// whatever a transport locks inside Send and Ack; transports call the engine
// without holding locks. Two helpers stand beside that way: the keeper, which
// waits for the one next moment that the route needs (a retry, an expiry, a rate
// token), and the clerk, which makes the slow calls to stores.
//
// # What is charged
//
// A message is charged only for failures of its own. While its destination
// cannot be reached it is held: uncharged, in order, without limit of time but
// its own expiry (see [gobridge.Error.Outage]). A failure on a reachable
// destination is retried with backoff until send_retry_budget is spent; that is
// one attempt, counted in the replay ledger; max_replay_attempts of them and the
// message is given up.
package engine
