package sqlite

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/gobridge/gobridge"
)

//go:embed migrations
var migrationFiles embed.FS

// schema is what a file of one sort holds.
type schema struct {
	// id marks the files among all SQLite files.
	id int64
	// steps lead from version to version; the first one to version 1. A step that was
	// released is never changed.
	steps []string
}

var (
	storesSchema = schema{0x476f4272, steps("migrations/*.sql")}        // "GoBr"
	leasesSchema = schema{0x476f424c, steps("migrations/leases/*.sql")} // "GoBL"
)

func steps(pattern string) []string {
	names, err := fs.Glob(migrationFiles, pattern)
	if err != nil {
		panic(err)
	}
	slices.Sort(names)
	steps := make([]string, len(names))
	for i, name := range names {
		step, err := fs.ReadFile(migrationFiles, name)
		if err != nil {
			panic(err)
		}
		steps[i] = string(step)
	}
	return steps
}

// migrate brings the schema of a file to the version of this program. Another
// process may be doing the same: whoever comes second finds it done.
func migrate(c *conn, path string, s *schema) error {
	version, err := s.versionOf(c, path)
	if err != nil || version == len(s.steps) {
		return err
	}
	if err := c.query("BEGIN IMMEDIATE").exec(); err != nil {
		return err
	}
	if version, err = s.versionOf(c, path); err == nil {
		for ; version < len(s.steps) && err == nil; version++ {
			if err = c.Exec(s.steps[version]); err != nil {
				err = fmt.Errorf("migrate %s to schema version %d: %w", path, version+1, err)
			}
		}
	}
	if err == nil {
		err = c.Exec(fmt.Sprintf("PRAGMA application_id = %d; PRAGMA user_version = %d; COMMIT", s.id, version))
	}
	if err != nil && !c.GetAutocommit() {
		_ = c.query("ROLLBACK").exec() // the first error says more
	}
	return err
}

// versionOf reads the schema version, and refuses a file that is not for this
// program.
func (s *schema) versionOf(c *conn, path string) (int, error) {
	version, _, err := c.query("PRAGMA user_version").number()
	if err != nil {
		return 0, err
	}
	id, _, err := c.query("PRAGMA application_id").number()
	if err != nil {
		return 0, err
	}
	tables, _, err := c.query("SELECT count(*) FROM sqlite_schema").number()
	if err != nil {
		return 0, err
	}
	switch {
	case id != s.id && (id == storesSchema.id || id == leasesSchema.id):
		return 0, &gobridge.Error{
			Code: gobridge.CodeInvalidConfig, Class: gobridge.ClassPermanent, Op: "store " + path,
			Err: errors.New("leases live in a file of their own, apart from the other stores"), Hint: "give each of the two a path of its own",
		}
	case id != s.id && (tables > 0 || version > 0):
		return 0, &gobridge.Error{
			Code: gobridge.CodeInvalidConfig, Class: gobridge.ClassPermanent, Op: "store " + path,
			Err: errors.New("the database belongs to another program"), Hint: "give the store a path of its own",
		}
	case version > int64(len(s.steps)):
		return 0, &gobridge.Error{
			Code: gobridge.CodeVersionMismatch, Class: gobridge.ClassPermanent, Op: "store " + path,
			Err:  fmt.Errorf("the file has schema version %d, this program knows versions up to %d", version, len(s.steps)),
			Hint: "run the newer version of gobridge, or begin with a new file",
		}
	}
	return int(version), nil
}
