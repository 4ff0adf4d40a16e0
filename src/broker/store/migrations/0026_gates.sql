-- How often a failure of its own is tried again, and how often it was. `retry_on`: a JSON list of exit codes; null: any.
ALTER TABLE jobs ADD COLUMN retries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN retried INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN retry_delay_s REAL NOT NULL DEFAULT 10;
ALTER TABLE jobs ADD COLUMN retry_on TEXT;

-- A job before its time, an instant of the broker's clock, or on hold stands in no line, whatever else it waits for.
-- Its time is no more than null once it has come.
ALTER TABLE jobs ADD COLUMN not_before INTEGER;
-- The same of a pause, in the time in which the broker listens: it is over as soon as either says so.
ALTER TABLE jobs ADD COLUMN waits_until INTEGER;
ALTER TABLE jobs ADD COLUMN hold INTEGER NOT NULL DEFAULT 0 CHECK (hold IN (0, 1));
ALTER TABLE jobs ADD COLUMN gated INTEGER NOT NULL GENERATED ALWAYS AS (hold = 1 OR not_before IS NOT NULL) VIRTUAL;

-- What was changed after the submit, as JSON: field, value. The specification stays what was asked for.
ALTER TABLE jobs ADD COLUMN changes TEXT;

DROP INDEX jobs_dispatch;
CREATE INDEX jobs_dispatch ON jobs (shape, place, priority DESC, id)
WHERE state = 'queued' AND blocked = 0 AND gated = 0;

-- Jobs whose time is to come.
CREATE INDEX jobs_before_time ON jobs (not_before) WHERE state = 'queued' AND not_before IS NOT NULL;
