-- How long jobs ran, of all commands that differ only in values: the last ends, successes and failures apart, as JSON
-- lists of [exact fingerprint, seconds]. A job's fingerprint is `similar.exact`; of older jobs nobody knows it.
CREATE TABLE run_times (
  similar TEXT PRIMARY KEY,
  runs TEXT NOT NULL DEFAULT '[]',
  failed TEXT NOT NULL DEFAULT '[]',
  at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX run_times_by_age ON run_times (at);

ALTER TABLE jobs ADD COLUMN fingerprint TEXT;

-- Why the head of a line waits, as the last event of it said.
ALTER TABLE lines ADD COLUMN told_head INTEGER;
ALTER TABLE lines ADD COLUMN told TEXT;
