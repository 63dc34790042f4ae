package admin

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"testing"

	"go.uber.org/goleak"

	"github.com/gobridge/gobridge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeBridge answers what a test puts into it.
type fakeBridge struct {
	live     error
	reasons  map[gobridge.ServiceLevel][]gobridge.Reason
	health   gobridge.BridgeHealth
	topology gobridge.Topology
}

var _ Bridge = (*fakeBridge)(nil)

func (f *fakeBridge) Live() error                                         { return f.live }
func (f *fakeBridge) Ready(level gobridge.ServiceLevel) []gobridge.Reason { return f.reasons[level] }
func (f *fakeBridge) Health() gobridge.BridgeHealth                       { return f.health }
func (f *fakeBridge) Topology() gobridge.Topology                         { return f.topology }

func testLogger(t *testing.T) *slog.Logger {
	t.Helper()
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// fakeOperator has what a test puts into it. Redrive deletes the entry, or gives the
// error of its id.
type fakeOperator struct {
	dlq    gobridge.DLQ
	outbox gobridge.Outbox
	stores []gobridge.FileStore
	// redrive answers instead, when it is set.
	redrive func(ctx context.Context, id string) error

	topology      gobridge.Topology
	subscriptions map[string]gobridge.SessionSubscriptions
	// failWith is the answer of everything that is done to a session.
	failWith error
	// asked is what was done to sessions.
	asked []string
}

var _ Operator = (*fakeOperator)(nil)

func (f *fakeOperator) DLQ() gobridge.DLQ            { return f.dlq }
func (f *fakeOperator) Outbox() gobridge.Outbox      { return f.outbox }
func (f *fakeOperator) Stores() []gobridge.FileStore { return f.stores }

func (f *fakeOperator) Redrive(ctx context.Context, id string) error {
	if f.redrive != nil {
		return f.redrive(ctx, id)
	}
	_, err := f.dlq.Delete(ctx, id)
	return err
}

func (f *fakeOperator) Topology() gobridge.Topology { return f.topology }

func (f *fakeOperator) Subscriptions(_ context.Context, id string) (gobridge.SessionSubscriptions, error) {
	s, ok := f.subscriptions[id]
	if !ok {
		return s, cmp.Or(f.failWith, error(gobridge.ErrNotSupported))
	}
	return s, f.failWith
}

func (f *fakeOperator) SeedSubscriptions(_ context.Context, id string, discard bool, further ...string) error {
	return f.note(fmt.Sprint("seed ", id, " ", discard, " ", further))
}

func (f *fakeOperator) DrainSession(_ context.Context, id string) error { return f.note("drain " + id) }

func (f *fakeOperator) EndSession(_ context.Context, id string) error { return f.note("end " + id) }

func (f *fakeOperator) RetrySession(id string) error { return f.note("retry " + id) }

func (f *fakeOperator) note(what string) error {
	f.asked = append(f.asked, what)
	return f.failWith
}
