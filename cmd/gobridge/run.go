package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge/admin"
	"github.com/gobridge/gobridge/config"
	"github.com/gobridge/gobridge/engine"
	"github.com/gobridge/gobridge/kinds"
)

// run runs a bridge until a signal.
type run struct{ config configFlag }

func newRun() *cobra.Command {
	var r run
	cmd := &cobra.Command{
		Use:   "run [FILE]",
		Short: "Run a bridge",
		Long: "Run a bridge until SIGTERM or SIGINT. A second signal stops at once.\n" +
			"Exit codes: 0 everything taken was settled, 1 it could not start, 2 wrong usage,\n" +
			"3 messages were left at their source, which delivers them again.",
		RunE: r.run,
	}
	r.config.add(cmd)
	return cmd
}

func (r *run) run(cmd *cobra.Command, args []string) error {
	name, err := r.config.file(cmd, args)
	if err != nil {
		return err
	}
	file, diags, err := loadConfig(cmd, name)
	if err != nil {
		return err
	}
	if file.Redacted {
		return fmt.Errorf("%s: holds secrets as config show masks them (put the real ones back)", name)
	}
	log := newLogger(file.Log, cmd.ErrOrStderr())
	err = runBridge(cmd.Context(), name, file, diags, log)
	if err == nil || file.Log.Format != "json" {
		return err
	}
	// Whoever reads the log as JSON gets the last line as JSON, too.
	status, ok := errors.AsType[*exitError](err)
	if !ok {
		status = &exitError{exitFailed, err}
	}
	log.Error("exiting", "err", oneLine(status.Error()), "exit_code", status.code)
	return &exitError{code: status.code}
}

// runBridge runs the bridge of a sound config until a signal.
func runBridge(parent context.Context, name string, file *config.File, diags []config.Diagnostic, log *slog.Logger) error {
	for _, d := range diags {
		// The engine says itself what should be known about its spec.
		if strings.HasPrefix(d.Path, "http.") {
			log.Warn(d.What, "field", d.Path, "hint", d.Hint)
		}
	}
	if limit := limitMemory("/"); limit > 0 {
		log.Info("memory limit from cgroup", "bytes", limit)
	}
	b := thisBuild()
	log.Info("starting", "version", b.Version, "commit", b.Commit, "config", name,
		"bridge_id", file.Spec.Bridge.ID, "instance_id", file.Spec.Bridge.InstanceID)

	eng, err := engine.New(&file.Spec, engine.Options{Kinds: kinds.All(), Logger: log})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	server, err := listen(&file.HTTP, eng, log)
	if err != nil {
		return err
	}
	ctx, done := untilSignal(parent, log, os.Exit)
	defer done()
	err = serve(ctx, server, eng, log)
	if _, ok := errors.AsType[*engine.UnsettledError](err); ok {
		return &exitError{exitUnsettled, fmt.Errorf("%w (their source delivers them again)", err)}
	}
	return err
}

// httpServer is the HTTP listener with the admin API on it, whose jobs run beside it.
type httpServer struct {
	*admin.Server
	api *admin.API
}

// listen takes the address of the HTTP listener, nil when there is to be none.
func listen(cfg *config.HTTP, eng *engine.Engine, log *slog.Logger) (*httpServer, error) {
	if cfg.Listen == "" {
		return nil, nil
	}
	keys := make([]admin.Key, len(cfg.AdminKeys))
	for i, k := range cfg.AdminKeys {
		keys[i] = admin.Key{Name: k.Name, Key: k.Key}
	}
	api := admin.NewAPI(eng, keys, log)
	server, err := admin.Listen(
		admin.Config{Listen: cfg.Listen, CertFile: cfg.TLS.CertFile, KeyFile: cfg.TLS.KeyFile},
		admin.NewHandler(eng, api, eng.Metrics(), log), log)
	if err != nil {
		return nil, err
	}
	return &httpServer{server, api}, nil
}

// serve runs the engine and, around its whole life, the HTTP listener: probes
// answer while the bridge drains. The jobs of the admin API end with ctx.
func serve(ctx context.Context, server *httpServer, eng *engine.Engine, log *slog.Logger) error {
	if server == nil {
		return eng.Run(ctx)
	}
	var wg sync.WaitGroup
	serverCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	wg.Go(func() {
		// Messages matter more than the view on them: the bridge goes on.
		if err := server.Run(serverCtx); err != nil {
			log.Error("http listener down", "error", err)
		}
	})
	wg.Go(func() { server.api.Run(ctx) })
	err := eng.Run(ctx)
	stop()
	wg.Wait()
	return err
}

// untilSignal returns a context that the first SIGTERM, SIGINT or SIGHUP ends; a second
// one ends the process. done ends the watch.
func untilSignal(parent context.Context, log *slog.Logger, exit func(int)) (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	var wg sync.WaitGroup
	quit := make(chan struct{})
	wg.Go(func() {
		for first := true; ; first = false {
			select {
			case <-quit:
				return
			case sig := <-signals:
				if !first {
					log.Warn("second signal, stopping now", "signal", sig.String())
					exit(exitUnsettled)
				}
				cancel(fmt.Errorf("signal: %s", sig))
			}
		}
	})
	return ctx, func() {
		signal.Stop(signals)
		close(quit)
		wg.Wait()
		cancel(nil)
	}
}

func newLogger(cfg config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	// The config allows the names that this reads, and no others.
	_ = level.UnmarshalText([]byte(cfg.Level))
	opts := &slog.HandlerOptions{Level: level}
	if cfg.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
