// Testall runs the tests of the repository and says what it could not run.
//
//	go run ./internal/testall [go test flags] [packages]
//
// It is `go test -race -shuffle=on ./...` with the output of that command, plus
// one thing: a test that lacks a real part, a broker for instance, skips with a
// message that begins with "NOT RUN: ", and go test hides skips. Testall ends with
// a list of them. With GOBRIDGE_REQUIRE_MOSQUITTO=1 such a list is a failure.
//
// Flags go to go test as they are; packages start with "./" and default to ./... .
// Without a C compiler the race detector is left out, and the list says so.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	rep := &report{out: stdout, verbose: slices.Contains(args, "-v") || slices.Contains(args, "-v=true")}
	race := "-race"
	if why := noRace(ctx); why != "" {
		race = "-race=false"
		rep.missing("the race detector ("+why+")", "every test")
	}
	command := []string{"test", "-json", race, "-shuffle=on"}
	if !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "./") }) {
		// Before the flags: what follows a flag that go test does not know goes to the
		// test binaries, and only the package of the current folder would be tested.
		command = append(command, "./...")
	}
	cmd := exec.CommandContext(ctx, "go", append(command, args...)...)
	cmd.Stderr = stderr
	// go test passes an interrupt on to the tests and waits for them.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(stderr, "testall: start go test:", err)
		return 1
	}
	readErr := rep.read(out)
	err = cmd.Wait()
	notRun := rep.end()
	switch exit, ok := errors.AsType[*exec.ExitError](err); {
	case ok:
		return max(exit.ExitCode(), 1)
	case err != nil || readErr != nil:
		fmt.Fprintln(stderr, "testall: read go test:", errors.Join(err, readErr))
		return 1
	case notRun && os.Getenv("GOBRIDGE_REQUIRE_MOSQUITTO") == "1":
		fmt.Fprintln(stdout, "FAIL: GOBRIDGE_REQUIRE_MOSQUITTO=1 requires every real part")
		return 1
	}
	return 0
}

// noRace returns why the race detector cannot be built here, "" when it can.
func noRace(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "go", "env", "CGO_ENABLED", "CC").Output()
	if err != nil {
		return "" // go test will say what is wrong
	}
	cgo, cc, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	compiler, _, _ := strings.Cut(cc, " ")
	if _, err := exec.LookPath(compiler); err != nil {
		return "no C compiler " + compiler + "; apt-get install gcc libc6-dev"
	}
	if cgo != "1" {
		return "CGO_ENABLED=" + cgo
	}
	return ""
}
