// Command bench measures gobridge beside mosquitto's own bridge on this machine and
// prints a Markdown table: rate, CPU time a message, latency and memory. README.md in
// its directory says how to read it.
//
//	go run ./bench                       # about four minutes on two cores
//	go run ./bench -only fake            # the bridges' own ceiling
//	go run ./bench -only 'direct|1000$' -rounds 3 -n 5000
//
// It needs Linux for the figures of /proc and mosquitto for everything but the
// runs of gobridge between fakes. Its exit code is 1 when a run failed or lost messages, or something
// that was asked for could not run.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := 0
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		code = 1
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}
	stop()
	os.Exit(code)
}

// options are the command line.
type options struct {
	load
	rounds      int
	only        *regexp.Regexp
	persistence bool
	gobridge    string
	json        string
}

func parseOptions(args []string, stderr io.Writer) (options, error) {
	o := options{only: regexp.MustCompile("")}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.messages, "n", 20_000, "messages of a flat-out run between real brokers")
	flags.IntVar(&o.rounds, "rounds", 5, "runs of each contender; they take turns")
	flags.Func("only", "`regexp` of the SETTING/CONTENDER names to run, such as brokers/gobridge (default all)", func(text string) (err error) {
		o.only, err = regexp.Compile(text)
		return err
	})
	flags.DurationVar(&o.duration, "duration", 2*time.Second, "of the paced phase, and about that of a run between fakes")
	flags.IntVar(&o.rate, "rate", 1000, "messages a second of the paced phase")
	flags.IntVar(&o.size, "size", 256, "bytes of a payload")
	flags.BoolVar(&o.persistence, "persistence", false, "let the brokers keep their state on disk")
	flags.StringVar(&o.gobridge, "gobridge", "", "`path` of a gobridge binary (default: built from this module)")
	flags.StringVar(&o.json, "json", "", "also write every figure of every run to this `file`")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q (see -h)", flags.Arg(0))
	case o.messages < 1 || o.rounds < 1 || o.rate < 1 || o.duration <= 0:
		return o, errors.New("-n, -rounds, -rate and -duration must be over 0")
	case o.size < stampSize || o.size > maxSize:
		return o, fmt.Errorf("-size %d: must be %d to %d", o.size, stampSize, maxSize)
	}
	return o, nil
}

// job is one contender in one setting.
type job struct {
	setting   setting
	contender contender
}

// jobs returns what -only selects, setting by setting.
func (o options) jobs() []job {
	var jobs []job
	for _, s := range settings {
		for _, c := range contenders {
			if s.name == "fake" && c.kind == insideOne {
				continue // a broker is not between the fakes
			}
			if o.only.MatchString(s.name + "/" + c.name) {
				jobs = append(jobs, job{s, c})
			}
		}
	}
	return jobs
}

// needsMosquitto says whether the job cannot run without a mosquitto.
func (j job) needsMosquitto() bool {
	return j.setting.name == "brokers" || j.contender.kind != ofGobridge
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parseOptions(args, stderr)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gobridge-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	rep := &report{Date: time.Now().UTC(), Machine: thisMachine(), Load: o.describe()}
	p := &programs{mosquitto: findMosquitto(), gobridge: o.gobridge, persistence: o.persistence}
	var jobs []job
	for _, j := range o.jobs() {
		if j.needsMosquitto() && p.mosquitto == "" {
			rep.NotRun = append(rep.NotRun, fmt.Sprintf("%s/%s: mosquitto is not installed (apt-get install mosquitto, or brew install mosquitto)", j.setting.name, j.contender.name))
			continue
		}
		if j.contender.kind == ofGobridge && p.gobridge == "" {
			fmt.Fprintln(stderr, "building gobridge")
			if p.gobridge, err = buildGobridge(ctx, dir); err != nil {
				return err
			}
		}
		jobs = append(jobs, j)
	}
	if len(jobs)+len(rep.NotRun) == 0 {
		return errors.New("-only matches nothing (names are SETTING/CONTENDER, see README.md)")
	}
	if rep.Versions, err = p.versions(ctx); err != nil {
		return err
	}
	if rep.binaries, err = p.sizes(); err != nil {
		return err
	}
	for round := range o.rounds {
		for i := range jobs {
			// Everybody is first once in a while.
			j := jobs[(i+round)%len(jobs)]
			res := j.setting.measure(ctx, p, j.contender, o.load, dir, round+1)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			fmt.Fprintln(stderr, res)
			rep.Results = append(rep.Results, res)
		}
	}
	if o.json != "" {
		text, err := json.MarshalIndent(rep, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(o.json, append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	if err := rep.markdown(stdout); err != nil {
		return err
	}
	if rep.failed() || len(rep.NotRun) > 0 {
		return errors.New("not complete: see the end of the report")
	}
	return nil
}

// describe returns the load in words.
func (o options) describe() string {
	kept := "off"
	if o.persistence {
		kept = "on"
	}
	return fmt.Sprintf("QoS 1, %d B payload. Flat out: %d messages between brokers, between fakes as many as take about %v. Paced: %d msg/s for %v. %d rounds. Broker persistence %s.",
		o.size, o.messages, o.duration, o.rate, o.duration, o.rounds, kept)
}
