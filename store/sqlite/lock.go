package sqlite

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gobridge/gobridge"
)

// dirLock makes this process the one owner of a store (decision C2). The file stays
// when the lock ends: removing it would let two processes hold different files of
// one name.
type dirLock struct{ file *os.File }

// acquire locks the file at path and writes the process id into it.
func acquire(path string) (*dirLock, error) {
	f, locked, err := openLocked(path)
	if err != nil {
		return nil, refused("lock "+path, path, err)
	}
	if locked {
		owner := "another process"
		if b, err := os.ReadFile(path); err == nil {
			if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
				owner = "the process with pid " + strconv.Itoa(pid)
			}
		}
		return nil, &gobridge.Error{
			Code: gobridge.CodeUnavailable, Class: gobridge.ClassPermanent, Op: "lock " + filepath.Dir(path),
			Err:  errors.New(owner + " is using it"),
			Hint: "stop that process, talk to it with --url, or give this one a data_dir of its own",
		}
	}
	l := &dirLock{f}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		l.release()
		return nil, fmt.Errorf("write the process id: %w", err)
	}
	return l, nil
}

// release ends the lock; a nil one is none.
func (l *dirLock) release() {
	if l != nil {
		_ = l.file.Close() // read-only from here on: nothing to lose
	}
}
