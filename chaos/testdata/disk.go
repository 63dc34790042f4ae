package sqlite

import (
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/ncruces/go-sqlite3"
	"github.com/ncruces/go-sqlite3/vfs"
)

// This file is compiled into the bridge of a chaos run and no other.

// disk is a VFS whose files keep in memory what was not synced: kill -9 is a loss of
// power. A file named full in the directory of GOBRIDGE_CHAOS_DISK makes it refuse to
// grow files, one named broken to write and to sync.
type disk struct{ vfs.VFSFilename }

// volatile is the name that disk is registered under.
const volatile = "volatile"

func init() { vfs.Register(volatile, disk{vfs.Find("os").(vfs.VFSFilename)}) }

// onDisk puts a connection on the disk.
func onDisk(params url.Values) url.Values {
	all := url.Values{"vfs": {volatile}}
	for name, values := range params {
		all[name] = values
	}
	return all
}

func faulty(name string) bool {
	_, err := os.Stat(filepath.Join(os.Getenv("GOBRIDGE_CHAOS_DISK"), name))
	return err == nil
}

// image is a file as its readers see it, shared by its handles.
type image struct {
	handles int
	content []byte
	open    []unsynced // since the last sync
}

// unsynced is a write, or without data a truncation to the size at.
type unsynced struct {
	at   int64
	data []byte
}

var images = struct {
	sync.Mutex
	byName map[string]*image
}{byName: map[string]*image{}}

// OpenFilename implements vfs.VFSFilename.
func (d disk) OpenFilename(name *vfs.Filename, flags vfs.OpenFlag) (vfs.File, vfs.OpenFlag, error) {
	f, flags, err := d.VFSFilename.OpenFilename(name, flags)
	if err != nil || name == nil {
		return f, flags, err
	}
	images.Lock()
	defer images.Unlock()
	i := images.byName[name.String()]
	if i == nil {
		content, err := os.ReadFile(name.String())
		if err != nil {
			_ = f.Close()
			return nil, flags, err
		}
		i = &image{content: content}
		images.byName[name.String()] = i
	}
	i.handles++
	return &volatileFile{File: f, name: name.String(), image: i}, flags, nil
}

type volatileFile struct {
	vfs.File
	name  string
	image *image
}

// ReadAt implements io.ReaderAt.
func (f *volatileFile) ReadAt(b []byte, at int64) (int, error) {
	images.Lock()
	defer images.Unlock()
	if at >= int64(len(f.image.content)) {
		return 0, io.EOF
	}
	n := copy(b, f.image.content[at:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements io.WriterAt.
func (f *volatileFile) WriteAt(b []byte, at int64) (int, error) {
	images.Lock()
	defer images.Unlock()
	end := int(at) + len(b)
	switch {
	case faulty("broken"):
		return 0, sqlite3.IOERR_WRITE
	case end > len(f.image.content) && faulty("full"):
		return 0, sqlite3.FULL
	}
	c := unsynced{at, slices.Clone(b)}
	f.image.apply(c)
	f.image.open = append(f.image.open, c)
	return len(b), nil
}

// Truncate implements vfs.File.
func (f *volatileFile) Truncate(size int64) error {
	images.Lock()
	defer images.Unlock()
	c := unsynced{at: size}
	f.image.apply(c)
	f.image.open = append(f.image.open, c)
	return nil
}

func (i *image) apply(c unsynced) {
	end := int(c.at) + len(c.data)
	if c.data == nil {
		i.content = slices.Clone(i.content[:min(end, len(i.content))])
	}
	if grow := end - len(i.content); grow > 0 {
		i.content = append(i.content, make([]byte, grow)...)
	}
	copy(i.content[c.at:], c.data)
}

// Size implements vfs.File.
func (f *volatileFile) Size() (int64, error) {
	images.Lock()
	defer images.Unlock()
	return int64(len(f.image.content)), nil
}

// Sync implements vfs.File.
func (f *volatileFile) Sync(flags vfs.SyncFlag) error {
	images.Lock()
	defer images.Unlock()
	if faulty("broken") {
		return sqlite3.IOERR_FSYNC
	}
	if err := f.flush(); err != nil {
		return err
	}
	return f.File.Sync(flags)
}

// flush writes what was kept in memory. Called with images locked.
func (f *volatileFile) flush() error {
	for len(f.image.open) > 0 {
		c := f.image.open[0]
		var err error
		if c.data == nil {
			err = f.File.Truncate(c.at)
		} else {
			_, err = f.File.WriteAt(c.data, c.at)
		}
		if err != nil {
			return err
		}
		f.image.open = f.image.open[1:]
	}
	return nil
}

// Close implements io.Closer. The operating system outlives the last handle, and so
// does what was not synced.
func (f *volatileFile) Close() error {
	images.Lock()
	defer images.Unlock()
	if f.image.handles--; f.image.handles == 0 {
		delete(images.byName, f.name)
		if err := f.flush(); err != nil {
			_ = f.File.Close()
			return err
		}
	}
	return f.File.Close()
}

// SharedMemory implements vfs.FileSharedMemory.
func (f *volatileFile) SharedMemory() vfs.SharedMemory {
	return f.File.(vfs.FileSharedMemory).SharedMemory()
}

// LockState implements vfs.FileLockState.
func (f *volatileFile) LockState() vfs.LockLevel { return f.File.(vfs.FileLockState).LockState() }

// HasMoved implements vfs.FileHasMoved.
func (f *volatileFile) HasMoved() (bool, error) { return f.File.(vfs.FileHasMoved).HasMoved() }
