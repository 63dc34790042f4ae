package admin

import (
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
