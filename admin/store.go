package admin

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/gobridge/gobridge"
)

// StoreList is the answer to a look at the files of the stores.
type StoreList struct {
	Stores []StoreFile `json:"stores"`
}

// StoreFile is one file.
type StoreFile struct {
	// Store is its number, for a backup.
	Store int    `json:"store"`
	Path  string `json:"path"`
	// Salvage tells of damage that nobody has acknowledged, null without.
	Salvage *gobridge.Salvage `json:"salvage"`
}

// StoreVerifications is the answer to a check of all files.
type StoreVerifications struct {
	Stores []*gobridge.Verification `json:"stores"`
}

// StoreAcknowledged is the answer to an acknowledgement: the reports that it ended.
type StoreAcknowledged struct {
	Acknowledged []*gobridge.Salvage `json:"acknowledged"`
}

// files returns the stores that live in files, an error without any.
func (a *API) files() ([]gobridge.FileStore, error) {
	if all := a.op.Stores(); len(all) > 0 {
		return all, nil
	}
	return nil, &failure{http.StatusNotFound, Error{"no store of the bridge lives in a file", "stores of type memory have nothing to look after"}}
}

func (a *API) listStores(c *call) error {
	c.quiet = true
	list := StoreList{Stores: []StoreFile{}}
	for i, s := range a.op.Stores() {
		list.Stores = append(list.Stores, StoreFile{i, s.Path(), s.Salvaged()})
	}
	return c.answer(http.StatusOK, list)
}

func (a *API) verifyStores(c *call) error {
	all, err := a.files()
	if err != nil {
		return err
	}
	answer := StoreVerifications{Stores: []*gobridge.Verification{}}
	problems, salvages := 0, 0
	for _, s := range all {
		v, err := s.Verify(c.Context())
		if err != nil {
			return err
		}
		problems += len(v.Problems)
		if v.Salvage != nil {
			salvages++
		}
		answer.Stores = append(answer.Stores, v)
	}
	c.detail("problems", problems, "salvages", salvages)
	return c.answer(http.StatusOK, answer)
}

func (a *API) acknowledgeStores(c *call) error {
	answer := StoreAcknowledged{Acknowledged: []*gobridge.Salvage{}}
	for _, s := range a.op.Stores() {
		salvage := s.Salvaged()
		if salvage == nil {
			continue
		}
		if err := s.Acknowledge(c.Context()); err != nil {
			return err
		}
		answer.Acknowledged = append(answer.Acknowledged, salvage)
		c.detail("damaged", salvage.Damaged, "salvaged", salvage.Salvaged, "lost", salvage.Lost, "lost_unknown", salvage.LostUnknown)
	}
	return c.answer(http.StatusOK, answer)
}

// backupStore sends a copy of a file. It is made beside the file first: a slow reader
// must not hold the store up.
func (a *API) backupStore(c *call) error {
	if err := c.known("store"); err != nil {
		return err
	}
	all, err := a.files()
	if err != nil {
		return err
	}
	i := 0
	if text := c.URL.Query().Get("store"); text != "" {
		if i, err = strconv.Atoi(text); err != nil || i < 0 || i >= len(all) {
			return badRequest("GET /api/v1/admin/store lists them", "store is not a number from 0 to %d", len(all)-1)
		}
	}
	dir, err := os.MkdirTemp(filepath.Dir(all[i].Path()), gobridge.ScratchPrefix(all[i].Path()))
	if err != nil {
		return fmt.Errorf("make room for the copy: %w", err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "copy.db")
	if err := all[i].Backup(c.Context(), path); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open the copy: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("open the copy: %w", err)
	}
	c.detail("store", i, "bytes", info.Size())
	h := c.w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	c.status = http.StatusOK
	if _, err := io.Copy(c.w, f); err != nil {
		// The length tells the client that something is missing.
		c.detail("err", err)
	}
	return nil
}
