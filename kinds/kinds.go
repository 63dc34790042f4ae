// Package kinds is the one list of the transports and stores that are built in.
// An embedder may build a smaller list of its own.
package kinds

import (
	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/credential"
	"github.com/gobridge/gobridge/store/memory"
	"github.com/gobridge/gobridge/store/sqlite"
	"github.com/gobridge/gobridge/transport/mqtt"
)

// All returns everything that a config can name.
func All() *gobridge.Kinds {
	return &gobridge.Kinds{
		Transports: []*gobridge.Transport{
			mqtt.Transport(),
		},
		Outboxes: []*gobridge.OutboxKind{
			sqlite.OutboxKind(),
			memory.OutboxKind(),
		},
		DLQs: []*gobridge.DLQKind{
			sqlite.DLQKind(),
			memory.DLQKind(),
		},
		Ledgers: []*gobridge.LedgerKind{
			sqlite.LedgerKind(),
			memory.LedgerKind(),
		},
		Leases: []*gobridge.LeaseKind{
			sqlite.LeaseKind(),
			memory.LeaseKind(),
		},
		Histories: []*gobridge.HistoryKind{
			sqlite.HistoryKind(),
			memory.HistoryKind(),
		},
		Credentials: []*gobridge.CredentialKind{
			credential.FileKind(),
			credential.EnvKind(),
		},
	}
}
