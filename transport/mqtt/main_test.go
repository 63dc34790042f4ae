package mqtt

import (
	"flag"
	"runtime"
	"strconv"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if runtime.GOMAXPROCS(0) < waiters {
		_ = flag.Set("test.parallel", strconv.Itoa(waiters))
	}
	goleak.VerifyTestMain(m)
}

// waiters is how many tests run at once: those that are parallel wait more than they
// work.
const waiters = 4
