-- A job may be a process that somebody else had started, and that a worker adopted: its process id there, and when it
-- started (field 22 of /proc/PID/stat), where that was said. Such a job is born running: it never waits for a worker.
ALTER TABLE jobs ADD COLUMN adopted_pid INTEGER CHECK (
  adopted_pid IS NULL OR (state NOT IN ('queued', 'assigned') AND policy = 'orphan' AND on_preempt = 'stop')
);
ALTER TABLE jobs ADD COLUMN adopted_start INTEGER;
CREATE INDEX jobs_adopted ON jobs (adopted_pid) WHERE adopted_pid IS NOT NULL AND state = 'running';
