-- Retention: what of a job that has ended is still there. Output goes first, then its row.
ALTER TABLE jobs ADD COLUMN logs_kept INTEGER NOT NULL DEFAULT 1 CHECK (logs_kept IN (0, 1));
ALTER TABLE jobs ADD COLUMN env_kept INTEGER NOT NULL DEFAULT 0 CHECK (env_kept IN (0, 1));
UPDATE jobs SET env_kept = 1 WHERE spec IN (SELECT id FROM specs WHERE json_extract(json, '$.env') IS NOT NULL);

CREATE INDEX jobs_by_end ON jobs (logs_kept, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX jobs_with_env ON jobs (ended_at) WHERE env_kept = 1 AND ended_at IS NOT NULL;
CREATE INDEX jobs_by_spec ON jobs (spec);
CREATE INDEX events_of_no_job ON events (seq) WHERE job IS NULL;

-- A parent whose row is gone leaves its end here: a child that comes back is decided by it.
CREATE TABLE dependencies_new (
  child INTEGER NOT NULL REFERENCES jobs (id),
  parent INTEGER NOT NULL,
  ended TEXT,
  PRIMARY KEY (child, parent)
) STRICT, WITHOUT ROWID;
INSERT INTO dependencies_new (child, parent) SELECT child, parent FROM dependencies;
DROP TABLE dependencies;
ALTER TABLE dependencies_new RENAME TO dependencies;
CREATE INDEX dependencies_by_parent ON dependencies (parent, child);
