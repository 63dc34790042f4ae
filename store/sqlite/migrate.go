package sqlite

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"

	"github.com/gobridge/gobridge"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// migrations are the steps of the schema; the first one leads to version 1. A step
// that was released is never changed.
var migrations = func() []string {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql")
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
}()

// applicationID marks the files of GoBridge ("GoBr") among all SQLite files.
const applicationID = 0x476f4272

// migrate brings the schema to the version of this program.
func migrate(c *conn, path string) error {
	version, _, err := c.query("PRAGMA user_version").number()
	if err != nil {
		return err
	}
	id, _, err := c.query("PRAGMA application_id").number()
	if err != nil {
		return err
	}
	tables, _, err := c.query("SELECT count(*) FROM sqlite_schema").number()
	if err != nil {
		return err
	}
	switch {
	case id != applicationID && (tables > 0 || version > 0):
		return &gobridge.Error{
			Code: gobridge.CodeInvalidConfig, Class: gobridge.ClassPermanent, Op: "store " + path,
			Err: fmt.Errorf("the database belongs to another program"), Hint: "give the store a path of its own",
		}
	case version > int64(len(migrations)):
		return &gobridge.Error{
			Code: gobridge.CodeVersionMismatch, Class: gobridge.ClassPermanent, Op: "store " + path,
			Err:  fmt.Errorf("the file has schema version %d, this program knows versions up to %d", version, len(migrations)),
			Hint: "run the newer version of gobridge, or begin with a new file",
		}
	}
	for step := version; step < int64(len(migrations)); step++ {
		script := fmt.Sprintf("BEGIN IMMEDIATE;\n%s\nPRAGMA application_id = %d;\nPRAGMA user_version = %d;\nCOMMIT;",
			migrations[step], applicationID, step+1)
		if err := c.Exec(script); err != nil {
			if !c.GetAutocommit() {
				_ = c.Exec("ROLLBACK")
			}
			return fmt.Errorf("migrate %s to schema version %d: %w", path, step+1, err)
		}
	}
	return nil
}
