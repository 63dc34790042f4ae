package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge/admin"
	"github.com/gobridge/gobridge/kinds"
)

const (
	defaultURL = "http://127.0.0.1:8080"
	adminPath  = "/api/v1/admin/"
	keyEnv     = "GOBRIDGE_ADMIN_KEY"
	// callTimeout is longer than the bound that the bridge has for itself.
	callTimeout = 30 * time.Second
	maxAnswer   = 256 << 20
)

// target says where a command finds the stores: at a running bridge, or in the files
// of a stopped one.
type target struct {
	url    string
	key    string
	config string
}

func (t *target) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.url, "url", "", "`address` of a running bridge's HTTP listener (default "+defaultURL+")")
	cmd.Flags().StringVar(&t.key, "key", "", "admin `key` of the bridge; "+keyEnv+" keeps it out of the process list")
	cmd.Flags().StringVarP(&t.config, "config", "c", "", "config `file` of a stopped bridge, to work on its stores")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml", "json")
}

// hideConfig takes -c out of the help of a command that needs a running bridge. It
// stays a flag, so that who writes it reads why it cannot be.
func (t *target) hideConfig(cmd *cobra.Command) { _ = cmd.Flags().MarkHidden("config") }

// open returns a client for the target; the needs are the stores that a command uses.
func (t *target) open(ctx context.Context, cmd *cobra.Command, needs need) (*client, error) {
	if t.config != "" {
		if t.url != "" {
			return nil, usageError(cmd, "--url and -c exclude each other")
		}
		return openStopped(ctx, cmd, t.config, kinds.All(), needs)
	}
	text := t.url
	if text == "" {
		text = defaultURL
	}
	base, err := bridgeURL(cmd, text)
	if err != nil {
		return nil, err
	}
	key := t.key
	if key == "" {
		key = os.Getenv(keyEnv)
	}
	return &client{base: base, key: key, http: &http.Client{
		Transport: http.DefaultTransport,
		// Whoever is redirected to does not get the key.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func bridgeURL(cmd *cobra.Command, text string) (*url.URL, error) {
	base, err := url.Parse(text)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, usageError(cmd, "--url must be http://HOST:PORT or https://HOST:PORT")
	}
	return base, nil
}

// oneID are the arguments of a command on one thing, whose id goes into a path.
func oneID(where string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := cobra.ExactArgs(1)(cmd, args); err != nil {
			return err
		}
		// A path has another meaning with these.
		if slices.Contains([]string{"", ".", ".."}, args[0]) {
			return usageError(cmd, fmt.Sprintf("%q is no id: %s", args[0], where))
		}
		return nil
	}
}

// untilInterrupt is the context of a command that a signal ends.
func untilInterrupt(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
}

// client talks to the admin API of a bridge. That of a stopped one is in this
// process and works on the files.
type client struct {
	base    *url.URL
	key     string
	http    *http.Client
	stopped *stoppedBridge
}

// Close lets go of the files.
func (c *client) Close() error {
	if c.stopped == nil {
		return nil
	}
	return c.stopped.close()
}

// call makes one request; body and answer are JSON, nil is none.
func (c *client) call(ctx context.Context, method, path string, query url.Values, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.callSlow(ctx, method, path, query, body, answer)
}

// callSlow is call for as long as it takes.
func (c *client) callSlow(ctx context.Context, method, path string, query url.Values, body, answer any) error {
	resp, err := c.send(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil {
		err = json.Unmarshal(data, answer)
	}
	if err != nil {
		return fmt.Errorf("answer from %s: %w", resp.Request.URL.Redacted(), err)
	}
	return nil
}

// send makes one request and returns an answer of status 2xx, whose body the caller
// closes; others are errors.
func (c *client) send(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	u := c.base.JoinPath(adminPath, path)
	u.RawQuery = query.Encode()
	var content io.Reader = http.NoBody
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), content)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, noAnswer(u, err)
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, c.refusal(u, resp)
}

// refusal is the error in an answer.
func (c *client) refusal(u *url.URL, resp *http.Response) error {
	var e admin.Error
	err := json.NewDecoder(io.LimitReader(resp.Body, 1<<16)).Decode(&e)
	if err != nil || e.Error == "" {
		return fmt.Errorf("%s answers %s (is this the http.listen of a bridge?)", u.Redacted(), resp.Status)
	}
	if resp.StatusCode == http.StatusUnauthorized {
		e.Hint = "give one of http.admin_keys in " + keyEnv + " or with --key"
	}
	if e.Hint != "" {
		e.Error += " (" + e.Hint + ")"
	}
	return errors.New(e.Error)
}

// noAnswer says which address did not answer, without what it may hold of a password.
func noAnswer(u *url.URL, err error) error {
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err
	}
	return fmt.Errorf("no answer from %s: %w (is the bridge running? --url names its http.listen)", u.Redacted(), err)
}

// printJSON writes v, indented.
func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// cell is text for one cell of a table: one line, a dash for nothing, and without
// what a terminal would obey. Messages come from anywhere.
func cell(s string) string { return dash(printable(oneLine(s))) }

func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' || r == '\t' {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// shortCell is a cell of at most n characters.
func shortCell(s string, n int) string {
	runes := []rune(cell(s))
	if len(runes) <= n {
		return string(runes)
	}
	return string(runes[:n-1]) + "…"
}

// second is a time for people, in UTC; a dash for none.
func second(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05Z")
}
