-- What somebody waits for, kept so that the answer can be fetched later and by another connection. `id` can't be guessed.
CREATE TABLE watches (
  id TEXT PRIMARY KEY,
  actor TEXT NOT NULL,
  jobs TEXT NOT NULL,
  array INTEGER,
  mode TEXT NOT NULL CHECK (mode IN ('all', 'any')),
  created_at INTEGER NOT NULL,
  cancelled_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX watches_by_age ON watches (created_at);
