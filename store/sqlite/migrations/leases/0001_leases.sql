-- Who owns the exclusive sessions. A row stays when its lease is released, so that
-- versions go on rising. ttl is in nanoseconds.
CREATE TABLE lease (
  key     TEXT PRIMARY KEY,
  holder  TEXT NOT NULL,
  version INTEGER NOT NULL,
  beat    INTEGER NOT NULL,
  ttl     INTEGER NOT NULL
) WITHOUT ROWID;
