package gobridge

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"
)

// Salvage tells what became of a store whose file was damaged (decision C6): what
// could be read is in a new file, the old one is kept.
type Salvage struct {
	At time.Time `json:"at"`
	// Damaged is where the old file is now.
	Damaged string `json:"damaged"`
	// Cause says how the damage showed.
	Cause string `json:"cause"`
	// Salvaged and Lost count messages: outbox records and dead letters. Lost counts
	// those whose traces are left.
	Salvaged int `json:"salvaged"`
	Lost     int `json:"lost"`
	// LostUnknown tells that nobody knows how many more are lost: part of the file or of
	// its log is not there, or nothing in it could be read.
	LostUnknown bool `json:"lost_unknown"`
}

// String says in words what was salvaged and lost.
func (s *Salvage) String() string {
	lost := strconv.Itoa(s.Lost)
	switch {
	case s.LostUnknown && s.Lost == 0:
		lost = "an unknown number"
	case s.LostUnknown:
		lost = "at least " + lost
	}
	return fmt.Sprintf("%d messages were salvaged, %s are lost", s.Salvaged, lost)
}

// Verification is what a check of a store's file found.
type Verification struct {
	Path string `json:"path"`
	// Records and DeadLetters count those whose checksums are right.
	Records     int `json:"records"`
	DeadLetters int `json:"dead_letters"`
	// Problems is empty when the file is sound.
	Problems []string `json:"problems"`
	// Salvage tells that the file has taken the place of a damaged one, and that nobody
	// has acknowledged that yet; null otherwise.
	Salvage *Salvage `json:"salvage"`
}

// ScratchPrefix begins the names of everything that is made beside the file of a store
// for a while. Whoever opens the file as its owner removes what a killed process left.
func ScratchPrefix(path string) string { return "." + filepath.Base(path) + ".scratch-" }

// FileStore is implemented by stores that live in a file of their own. Several
// stores may share one file; then each of them speaks for the whole file. Safe for
// concurrent use.
type FileStore interface {
	// Path is the file; stores of one path are one file.
	Path() string
	// Salvaged returns the salvage that nobody has acknowledged yet, nil when there is
	// none. It is durable: readiness names it until Acknowledge.
	Salvaged() *Salvage
	// Acknowledge ends the report of Salvaged.
	Acknowledge(ctx context.Context) error
	// Verify reads everything and checks it. The store stays in use meanwhile.
	Verify(ctx context.Context) (*Verification, error)
	// Backup writes a consistent copy to a file that must not exist yet. The store
	// stays in use meanwhile.
	Backup(ctx context.Context, path string) error
}
