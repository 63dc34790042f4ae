package bridgetest

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// childEnv makes the test binary play a child process for the tests of Process.
const childEnv = "BRIDGETEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "":
		goleak.VerifyTestMain(m)
	case "polite": // ends with 3 at SIGTERM
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		fmt.Println("ready")
		<-term
		fmt.Fprintln(os.Stderr, "bye")
		os.Exit(3)
	case "stubborn": // ignores SIGTERM
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		select {}
	}
}

// recorder is a testing.TB that notes how a test would have ended.
type recorder struct {
	testing.TB
	failed, skipped string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Fatal(args ...any)         { r.end(&r.failed, fmt.Sprint(args...)) }
func (r *recorder) Fatalf(f string, a ...any) { r.end(&r.failed, fmt.Sprintf(f, a...)) }
func (r *recorder) Errorf(f string, a ...any) { r.failed = fmt.Sprintf(f, a...) }
func (r *recorder) Skip(args ...any)          { r.end(&r.skipped, fmt.Sprint(args...)) }

// ended is the panic that stops a recorded test.
type ended struct{}

func (r *recorder) end(how *string, message string) {
	*how = message
	panic(ended{})
}

// record runs f with a recorder until it returns or ends its test.
func record(t *testing.T, f func(testing.TB)) *recorder {
	t.Helper()
	r := &recorder{TB: t}
	func() {
		defer func() {
			if p := recover(); p != nil && p != (ended{}) {
				panic(p)
			}
		}()
		f(r)
	}()
	return r
}
