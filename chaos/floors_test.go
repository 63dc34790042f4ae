package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// floorAfter is the load from which on a run that has not met every fault and row
// proves less than it claims.
const floorAfter = 5 * time.Minute

// kinds are all kinds of faults; rows those rows of the matrix that a run meets. G02 and
// G03 have tests of their own; so has G16, which nothing outside the bridge tells from G15.
var (
	kinds = []kind{
		bridgeKilled, bridgeTerm, bridgePaused, sourceRestarted, sourceKilled, sourcePaused, sourceRotated, destRestarted, destPaused,
		destRefuses, destRotated, sourceCut, sourceHole, sourceStall, destCut, destHole, destStall, destSlow, diskFull, diskBroken,
	}
	rows = []string{"G01", "G04", "G05", "G06", "G07", "G08", "G09", "G10", "G11", "G12", "G13", "G14", "G15", "G18", "G19"}
)

// floors names what a run of sufficient length has not met.
func (t *tally) floors() (missing []string) {
	if t.load < floorAfter {
		return nil
	}
	for _, k := range kinds {
		if t.faults[k] == 0 {
			missing = append(missing, fmt.Sprintf("no %q in %v", k, t.load))
		}
	}
	for _, r := range rows {
		if t.rows[r] == 0 {
			missing = append(missing, fmt.Sprintf("row %s was not met in %v", r, t.load))
		}
	}
	return missing
}

// String says how often each fault and each row was met.
func (t *tally) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d rounds (%d more not judged), %v under faults; %d copies judged, %d delivered, %d duplicates, the order of %d streams judged\nfaults:\n", t.rounds, t.unjudged, t.load, t.messages, t.deliveries, t.duplicates, t.ordered)
	for _, k := range slices.Sorted(maps.Keys(t.faults)) {
		fmt.Fprintf(&b, "  %5d %s\n", t.faults[k], k)
	}
	b.WriteString("rows:\n")
	for _, r := range slices.Sorted(maps.Keys(t.rows)) {
		fmt.Fprintf(&b, "  %7d %s\n", t.rows[r], r)
	}
	return b.String()
}
