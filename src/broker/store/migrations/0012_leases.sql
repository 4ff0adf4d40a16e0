-- A job may stand for a lease: work that is no job. How long one renewal lasts (milliseconds), until when it is renewed
-- (listening time; 0: it was told to end), and when it was said that its devices lie idle.
ALTER TABLE jobs ADD COLUMN lease_ttl_ms INTEGER;
ALTER TABLE jobs ADD COLUMN lease_until INTEGER;
ALTER TABLE jobs ADD COLUMN lease_idle_at INTEGER;
CREATE INDEX jobs_lease ON jobs (lease_until)
WHERE lease_until IS NOT NULL AND state IN ('queued', 'assigned', 'running');
