package memory

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/gobridge/gobridge"
)

// HistoryKind is the kind "memory" of managed subscription histories.
func HistoryKind() *gobridge.HistoryKind {
	return &gobridge.HistoryKind{
		Name:    "memory",
		Options: func() any { return &struct{}{} },
		Open: func(context.Context, *gobridge.BridgeSpec, *gobridge.StoreSpec, gobridge.Env) (gobridge.History, error) {
			return NewHistory(), nil
		},
	}
}

// History is a managed subscription history in memory.
type History struct {
	mu    sync.Mutex
	known map[gobridge.HistoryKey]map[string]struct{}
}

var _ gobridge.History = (*History)(nil)

// NewHistory returns an empty history.
func NewHistory() *History {
	return &History{known: map[gobridge.HistoryKey]map[string]struct{}{}}
}

// Load implements gobridge.History.
func (h *History) Load(_ context.Context, k gobridge.HistoryKey) ([]string, bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	filters, known := h.known[k]
	return slices.Sorted(maps.Keys(filters)), known, nil
}

// Remember implements gobridge.History.
func (h *History) Remember(_ context.Context, k gobridge.HistoryKey, filters ...string) error {
	if slices.Contains(filters, "") {
		return errors.New("managed subscription history: an empty filter")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known[k] == nil {
		h.known[k] = map[string]struct{}{}
	}
	for _, f := range filters {
		h.known[k][f] = struct{}{}
	}
	return nil
}

// Forget implements gobridge.History.
func (h *History) Forget(_ context.Context, k gobridge.HistoryKey, filters ...string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range filters {
		delete(h.known[k], f)
	}
	return nil
}

// Reset implements gobridge.History.
func (h *History) Reset(_ context.Context, k gobridge.HistoryKey) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.known[k] = map[string]struct{}{}
	return nil
}

// Close does nothing.
func (h *History) Close() error { return nil }
