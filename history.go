package gobridge

import "context"

// HistoryKey names a durable session in its broker.
type HistoryKey struct {
	SessionID string
	ClientID  string
}

// History is the managed subscription history: it remembers which filters a
// durable session has, or may have, in its broker (decisions V5, V7 and D4). An
// entry is a filter, or a note that the transport keeps about one and that is no
// valid filter. To the store both are text that is not empty, and the whole of it
// counts.
//
// A call is one transaction. Calls take effect in their order, also those whose
// context ended before the outcome was known. Safe for concurrent use.
type History interface {
	// Load returns the entries of a session; known is false without a baseline.
	Load(ctx context.Context, k HistoryKey) (entries []string, known bool, err error)
	// Remember adds entries, and makes the baseline known. A filter is remembered
	// before its SUBSCRIBE.
	Remember(ctx context.Context, k HistoryKey, entries ...string) error
	// Forget removes entries; a missing one is no error. A filter is forgotten after
	// its UNSUBACK.
	Forget(ctx context.Context, k HistoryKey, entries ...string) error
	// Reset makes the baseline known and empty: the broker has no session.
	Reset(ctx context.Context, k HistoryKey) error
	Close() error
}

// HistoryKind is a kind of managed subscription history.
type HistoryKind struct {
	Name    string
	Options func() any
	// Shared is that of [LeaseKind].
	Shared func(b *BridgeSpec, options any) (place string, err error)
	Open   func(ctx context.Context, b *BridgeSpec, s *StoreSpec, env Env) (History, error)
}
