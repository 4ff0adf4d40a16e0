-- A job that was retried by hand, and the one that does it again; either may be gone before the other.
ALTER TABLE jobs ADD COLUMN retry_of INTEGER;
ALTER TABLE jobs ADD COLUMN retried_as INTEGER;

-- Requests that were made under a key, and what they were answered. `request`: a hash of it, as it was understood.
CREATE TABLE keys (
  actor TEXT NOT NULL,
  project TEXT NOT NULL,
  operation TEXT NOT NULL,
  key TEXT NOT NULL,
  request TEXT NOT NULL,
  answer TEXT NOT NULL,
  job INTEGER,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (actor, project, operation, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX keys_by_age ON keys (created_at);

-- What was submitted a moment ago: a hash of specification and actor, and the last job of it.
CREATE TABLE recent_specs (
  hash TEXT PRIMARY KEY,
  job INTEGER NOT NULL,
  at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX recent_specs_by_age ON recent_specs (at);
