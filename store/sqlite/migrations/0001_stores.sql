-- What a process has to know before anything else: fence, seq, salvage.
CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value NOT NULL
) WITHOUT ROWID;

-- The write that finds out whether a full or failing disk takes writes again.
CREATE TABLE probe (
  id   INTEGER PRIMARY KEY,
  body BLOB NOT NULL
);

-- A partition of the outbox is a binding.
CREATE TABLE outbox_partition (
  id      INTEGER PRIMARY KEY,
  binding TEXT NOT NULL UNIQUE
);

-- One row for each record that waits. Small, in the order of sending, and the
-- place of what changes, so that a charge does not write the payload again. dedup
-- is NULL where the id of the message cannot come a second time.
CREATE TABLE outbox (
  part          INTEGER NOT NULL,
  seq           INTEGER NOT NULL,
  dedup         BLOB,
  payload       INTEGER NOT NULL,
  replays       INTEGER NOT NULL,
  first_attempt INTEGER NOT NULL,
  PRIMARY KEY (part, seq)
) WITHOUT ROWID;

-- The record itself, with a checksum. It says everything that a salvage needs.
CREATE TABLE outbox_record (
  seq    INTEGER PRIMARY KEY,
  record BLOB NOT NULL
);

-- Evidence against duplicates: the keys of completed records, in the order of
-- their completion, so that both ends of the table are written in sequence.
CREATE TABLE outbox_done (
  id      INTEGER PRIMARY KEY,
  dedup   BLOB NOT NULL,
  payload INTEGER NOT NULL,
  at      INTEGER NOT NULL
);

-- The entry holds the whole dead letter, with a checksum; the other columns are
-- for searching.
CREATE TABLE dlq (
  n        INTEGER PRIMARY KEY,
  id       TEXT NOT NULL UNIQUE,
  key      TEXT NOT NULL UNIQUE,
  route    TEXT NOT NULL,
  category TEXT NOT NULL,
  code     TEXT NOT NULL,
  last_at  INTEGER NOT NULL,
  bytes    INTEGER NOT NULL,
  entry    BLOB NOT NULL
);
CREATE INDEX dlq_route ON dlq (route, id);
CREATE INDEX dlq_category ON dlq (category, id);
CREATE INDEX dlq_code ON dlq (code, id);
CREATE INDEX dlq_age ON dlq (last_at, bytes);

CREATE TABLE ledger (
  route    TEXT NOT NULL,
  envelope TEXT NOT NULL,
  attempts INTEGER NOT NULL,
  at       INTEGER NOT NULL,
  PRIMARY KEY (route, envelope)
) WITHOUT ROWID;
CREATE INDEX ledger_age ON ledger (at);

-- The filters of a durable session. The row with an empty filter says that the
-- baseline is known.
CREATE TABLE history (
  session TEXT NOT NULL,
  client  TEXT NOT NULL,
  filter  TEXT NOT NULL,
  PRIMARY KEY (session, client, filter)
) WITHOUT ROWID;

INSERT INTO meta VALUES ('fence', 0), ('seq', 1);
