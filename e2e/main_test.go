package e2e

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pick returns ci, or full with LONG=1.
func pick[T any](ci, full T) T {
	if os.Getenv("LONG") == "1" {
		return full
	}
	return ci
}
