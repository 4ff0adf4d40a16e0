-- A job that is queued again is left to the worker where it ran, and where its checkpoints are, until an instant of the
-- listening time. It stands in no line meanwhile.
ALTER TABLE jobs ADD COLUMN prefers TEXT;
ALTER TABLE jobs ADD COLUMN prefers_until INTEGER;
ALTER TABLE workers ADD COLUMN checkpoint_root TEXT;

CREATE INDEX jobs_preferring ON jobs (prefers, shape, priority DESC, id) WHERE prefers IS NOT NULL;
