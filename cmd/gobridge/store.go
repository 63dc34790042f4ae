package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/gobridge/gobridge"
	"github.com/gobridge/gobridge/admin"
)

func newStore() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "store",
		Short: "Look after the files of the stores",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usageError(cmd, "store needs a command: verify, backup or acknowledge")
		},
	}
	cmd.AddCommand(newStoreVerify(), newStoreBackup(), newStoreAcknowledge())
	return cmd
}

// allStores is what the commands of a file need.
var allStores = need{dlq: true, outbox: true, others: true}

// storeVerify reads and checks everything.
type storeVerify struct {
	target target
	json   bool
}

func newStoreVerify() *cobra.Command {
	var v storeVerify
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Read everything in the stores and check it",
		Long: "Read every record of the stores and check it. Exit codes: 0 all is sound, 1 something is\n" +
			"not, or was not and has been salvaged (a stopped bridge's damaged file is, when it is opened) and\n" +
			"waits for gobridge store acknowledge.",
		Args: cobra.NoArgs,
		RunE: v.run,
	}
	v.target.add(cmd)
	cmd.Flags().BoolVar(&v.json, "json", false, "print JSON")
	return cmd
}

func (v *storeVerify) run(cmd *cobra.Command, _ []string) (err error) {
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	c, err := v.target.open(ctx, cmd, allStores)
	if err != nil {
		return err
	}
	defer closing(c, &err)
	var found admin.StoreVerifications
	if err := c.callSlow(ctx, http.MethodPost, "store/verify", nil, nil, &found); err != nil {
		return err
	}
	sound := true
	for _, s := range found.Stores {
		sound = sound && len(s.Problems) == 0 && s.Salvage == nil
	}
	if v.json {
		err = printJSON(cmd.OutOrStdout(), found)
	} else {
		err = printVerifications(cmd.OutOrStdout(), &found)
	}
	if err == nil && !sound {
		err = &exitError{code: exitFailed}
	}
	return err
}

func printVerifications(out io.Writer, found *admin.StoreVerifications) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "FILE\tOUTBOX RECORDS\tDEAD LETTERS\tPROBLEMS")
	for _, s := range found.Stores {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", cell(s.Path), s.Records, s.DeadLetters, len(s.Problems))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, s := range found.Stores {
		for _, p := range s.Problems {
			fmt.Fprintf(out, "%s: %s\n", cell(s.Path), cell(p))
		}
		if s.Salvage != nil {
			fmt.Fprintf(out, "%s: was damaged: %s (gobridge store acknowledge ends this report)\n", cell(s.Path), salvageLine(s.Salvage))
		}
	}
	return nil
}

// storeBackup copies the files.
type storeBackup struct{ target target }

func newStoreBackup() *cobra.Command {
	var b storeBackup
	cmd := &cobra.Command{
		Use:   "backup PATH",
		Short: "Write a consistent copy of the stores to a new file",
		Long: "Write a consistent copy of the stores to a new file on this machine, while the bridge goes on\n" +
			"or is stopped. Stores in several files become PATH, PATH.1, PATH.2 and so on.",
		Args: cobra.ExactArgs(1),
		RunE: b.run,
	}
	b.target.add(cmd)
	return cmd
}

func (b *storeBackup) run(cmd *cobra.Command, args []string) (err error) {
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	c, err := b.target.open(ctx, cmd, allStores)
	if err != nil {
		return err
	}
	defer closing(c, &err)
	var list admin.StoreList
	if err := c.call(ctx, http.MethodGet, "store", nil, nil, &list); err != nil {
		return err
	}
	if len(list.Stores) == 0 {
		return errors.New("no store of the bridge lives in a file")
	}
	for _, s := range list.Stores {
		path := args[0]
		if s.Store > 0 {
			path += "." + strconv.Itoa(s.Store)
		}
		if err := c.backup(ctx, s.Store, path); err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: copied to %s\n", cell(s.Path), path)
	}
	return nil
}

// backup copies one file to path. What is not complete does not stay.
func (c *client) backup(ctx context.Context, store int, path string) (err error) {
	if c.stopped != nil {
		return c.stopped.files[store].Backup(ctx, path)
	}
	f, err := newFile(path)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
		if err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	resp, err := c.send(ctx, http.MethodGet, "store/backup", url.Values{"store": {strconv.Itoa(store)}}, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(f, resp.Body); err != nil {
		return fmt.Errorf("copy to %s: %w", path, err)
	}
	return f.Sync()
}

// storeAcknowledge ends the report of a salvage.
type storeAcknowledge struct {
	target target
	json   bool
}

func newStoreAcknowledge() *cobra.Command {
	var a storeAcknowledge
	cmd := &cobra.Command{
		Use:   "acknowledge",
		Short: "Take note of a store that was damaged and salvaged",
		Long: "Take note of what was salvaged and lost from a damaged store: the bridge stops to report it and\n" +
			"is ready again. The damaged file stays where it is.",
		Args: cobra.NoArgs,
		RunE: a.run,
	}
	a.target.add(cmd)
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return cmd
}

func (a *storeAcknowledge) run(cmd *cobra.Command, _ []string) (err error) {
	ctx, stop := untilInterrupt(cmd)
	defer stop()
	c, err := a.target.open(ctx, cmd, allStores)
	if err != nil {
		return err
	}
	defer closing(c, &err)
	var done admin.StoreAcknowledged
	if err := c.call(ctx, http.MethodPost, "store/acknowledge", nil, nil, &done); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if a.json {
		return printJSON(out, done)
	}
	for _, s := range done.Acknowledged {
		fmt.Fprintln(out, salvageLine(s))
	}
	if len(done.Acknowledged) == 0 {
		fmt.Fprintln(out, "nothing to acknowledge")
	}
	return nil
}

func salvageLine(s *gobridge.Salvage) string {
	return fmt.Sprintf("%s: %s; cause: %s; damaged file: %s", second(s.At), s, cell(s.Cause), cell(s.Damaged))
}
