-- name: keep_snapshot
-- It lies there, and somebody may be about to name it.
INSERT INTO snapshots (sha256, size, used_at) VALUES (:sha256, :size, :now)
ON CONFLICT (sha256) DO UPDATE SET used_at = max(used_at, :now);

-- name: use_snapshot
-- Whether it is there; and if so, somebody may be about to name it.
UPDATE snapshots SET used_at = max(used_at, :now) WHERE sha256 = :sha256 RETURNING size;

-- name: snapshot
-- Whether it is there.
SELECT size FROM snapshots WHERE sha256 = :sha256;

-- name: drop_snapshots
-- Those that no job needs. What git said is needed as long as the job is known; a copy while the job may run, now or
-- again: a job that was cancelled for another comes back with that one.
DELETE FROM snapshots
WHERE used_at < :unnamed
  AND NOT EXISTS (SELECT 1 FROM specs INDEXED BY specs_by_snapshot WHERE specs.snapshot = 'git:' || snapshots.sha256)
  AND NOT EXISTS (
    SELECT 1 FROM specs INDEXED BY specs_by_snapshot
    JOIN jobs INDEXED BY jobs_by_spec ON jobs.spec = specs.id
    WHERE specs.snapshot = 'copy:' || snapshots.sha256 AND (
      jobs.ended_at IS NULL OR jobs.ended_at >= :ended OR jobs.state = 'orphaned' OR jobs.cascaded_by IS NOT NULL
      OR EXISTS (SELECT 1 FROM assignments AS a WHERE a.job = jobs.id AND a.reserved = 1)
    )
  )
RETURNING sha256;

-- name: snapshot_of_job
-- What a job was submitted with.
SELECT specs.snapshot FROM jobs JOIN specs ON specs.id = jobs.spec WHERE jobs.id = :job;
