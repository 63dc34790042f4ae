//go:build unix && !solaris && !illumos && !aix

package sqlite

import (
	"errors"
	"os"
	"syscall"
)

// openLocked opens the file with an exclusive lock that ends with the process;
// locked is true when somebody else has it.
func openLocked(path string) (f *os.File, locked bool, err error) {
	f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return f, false, nil
	}
	_ = f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, true, nil
	}
	return nil, false, &os.PathError{Op: "flock", Path: path, Err: err}
}

// noDirSync says that directories cannot be synced here.
const noDirSync = false
