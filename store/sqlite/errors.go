package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/ncruces/go-sqlite3"

	"github.com/gobridge/gobridge"
)

// outage turns a failure of the file into the typed error for those who wait: the
// store as a whole takes no writes at the moment, no message is to blame.
func outage(path string, err error) *gobridge.Error {
	e := &gobridge.Error{
		Code: gobridge.CodeUnavailable, Class: gobridge.ClassTransient, Outage: true,
		Op: "store " + path, Err: err,
	}
	switch {
	case errors.Is(err, sqlite3.FULL):
		e.Hint = "the disk is full: free some space, the store then goes on by itself"
	case errors.Is(err, errGone):
		e.Hint = "nothing more is taken; let the outbox drain, then restart the bridge: what is left then is lost"
	case errors.Is(err, sqlite3.READONLY), errors.Is(err, sqlite3.PERM), errors.Is(err, sqlite3.CANTOPEN), errors.Is(err, sqlite3.AUTH):
		e.Hint = "the user of this process needs to write to the file and its directory"
	case errors.Is(err, sqlite3.BUSY):
		e.Hint = "another program has locked the file: close it"
	case errors.Is(err, sqlite3.IOERR):
		e.Hint = "the disk fails: look at the system log; the store goes on by itself when writes work again"
	default:
		e.Hint = refusalHint(path, err)
	}
	return e
}

// cannotBegin is the outage of a store that cannot be opened: nothing goes on by itself
// later, because the process ends.
func cannotBegin(path string, err error) *gobridge.Error {
	e := outage(path, err)
	switch {
	case full(err):
		e.Hint = "the disk is full: free some space and start again"
	case errors.Is(err, sqlite3.IOERR):
		e.Hint = "the disk fails: look at the system log, and start again when it works"
	}
	return e
}

// refused is the error of a store whose files the system does not let it make or open.
func refused(op, path string, err error) error {
	return &gobridge.Error{Code: gobridge.CodeUnavailable, Class: gobridge.ClassPermanent, Op: op, Err: err, Hint: refusalHint(path, err)}
}

// refusalHint says what to do about an error of the system, empty where that says all.
func refusalHint(path string, err error) string {
	for at := path; ; at = filepath.Dir(at) {
		_, there := os.Stat(at)
		if target, link := os.Readlink(at); link == nil && errors.Is(there, fs.ErrNotExist) {
			return fmt.Sprintf("%s is a symbolic link to %s, which does not exist: make that, or correct the link", at, target)
		}
		if at == filepath.Dir(at) {
			break
		}
	}
	switch {
	case errors.Is(err, syscall.EROFS):
		return "the file system is read-only: give the bridge a bridge.data_dir that it can write to"
	case errors.Is(err, fs.ErrPermission):
		return "the user of this process needs to write to the file and its directory"
	case errors.Is(err, syscall.ENOTDIR):
		return "a directory is needed and a file is there: correct bridge.data_dir or the path of the store"
	}
	return ""
}

// ofFile tells failures of SQLite from refusals of a single change.
func ofFile(err error) bool {
	_, ok := errors.AsType[*sqlite3.Error](err)
	if !ok {
		_, ok = errors.AsType[sqlite3.ErrorCode](err)
	}
	if !ok {
		_, ok = errors.AsType[sqlite3.ExtendedErrorCode](err)
	}
	return ok
}

// damage tells that the file does not hold what was written to it.
func damage(err error) bool {
	return errors.Is(err, sqlite3.CORRUPT) || errors.Is(err, sqlite3.NOTADB) || errors.Is(err, gobridge.ErrDamaged)
}

func full(err error) bool { return errors.Is(err, sqlite3.FULL) }

// scratchBytes is what a disk that is not full has room for.
const scratchBytes = 1 << 20

// named tells a full disk from a failing one: the driver reports a write that found
// no space as an I/O error, and keeps the system's error to itself. So the file
// system is asked once more.
func (d *database) named(err error) error {
	if errors.Is(err, sqlite3.IOERR) && !full(err) && noSpace(d.path) {
		return fmt.Errorf("%w: %w", sqlite3.FULL, err)
	}
	return err
}

// noSpace reports whether a file of scratchBytes finds no room beside the store.
func noSpace(path string) bool {
	f, err := os.CreateTemp(filepath.Dir(path), gobridge.ScratchPrefix(path))
	if err == nil {
		_, err = f.Write(make([]byte, scratchBytes))
		_ = f.Close()
		_ = os.Remove(f.Name())
	}
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
