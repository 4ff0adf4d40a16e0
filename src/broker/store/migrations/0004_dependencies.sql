-- Jobs that wait for other jobs: `blocked` counts those that have not ended. A blocked job is queued, but stands
-- in no line.

ALTER TABLE jobs ADD COLUMN blocked INTEGER NOT NULL DEFAULT 0 CHECK (blocked >= 0);
ALTER TABLE jobs ADD COLUMN dependency_policy TEXT NOT NULL DEFAULT 'success';

-- The parent whose end cancelled this job, and nothing else did: so that its resurrection can undo it.
ALTER TABLE jobs ADD COLUMN cascaded_by INTEGER;

DROP INDEX jobs_dispatch;
CREATE INDEX jobs_dispatch ON jobs (shape, place, priority DESC, id) WHERE state = 'queued' AND blocked = 0;

CREATE TABLE dependencies (
  child INTEGER NOT NULL REFERENCES jobs (id),
  parent INTEGER NOT NULL REFERENCES jobs (id),
  PRIMARY KEY (child, parent)
) STRICT, WITHOUT ROWID;

CREATE INDEX dependencies_by_parent ON dependencies (parent, child);
