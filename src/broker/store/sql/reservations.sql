-- name: keep_room
-- A worker is kept for a job, in place of what was kept for the job or on the worker.
INSERT OR REPLACE INTO kept_room (job, worker, starts_at, after, looked_at)
VALUES (:job, :worker, :starts_at, :after, :looked_at);

-- name: give_up_room
-- Nothing is kept for this job any more.
DELETE FROM kept_room WHERE job = :job;

-- name: give_up_old_room
-- Nor for those that are not queued any more.
DELETE FROM kept_room
WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = kept_room.job AND jobs.state = 'queued' AND jobs.blocked = 0 AND jobs.gated = 0);

-- name: kept_rooms
-- What is kept, for jobs that wait: there are no more of these than workers, and few whose look found none.
SELECT kept_room.job, kept_room.worker, kept_room.starts_at, kept_room.after, kept_room.looked_at,
  jobs.project, jobs.priority, workers.name AS worker_name
FROM kept_room CROSS JOIN jobs ON jobs.id = kept_room.job LEFT JOIN workers ON workers.id = kept_room.worker
WHERE jobs.state = 'queued' AND jobs.blocked = 0 AND jobs.gated = 0;

-- name: running_on
-- What holds room on a worker, with all that says when it ends.
SELECT a.worker, a.job, a.attempt, a.cpus, a.given, a.state, a.wall_until, a.stop_id, a.stop_grace_s, j.max_wall_s, j.grace_s,
  j.fingerprint, j.started_at
FROM assignments AS a INDEXED BY assignments_held JOIN jobs AS j ON j.id = a.job
WHERE a.worker = :worker AND a.reserved = 1;

-- name: running_everywhere
-- The same of all workers.
SELECT a.worker, a.job, a.attempt, a.cpus, a.given, a.state, a.wall_until, a.stop_id, a.stop_grace_s, j.max_wall_s, j.grace_s,
  j.fingerprint, j.started_at
FROM assignments AS a INDEXED BY assignments_held JOIN jobs AS j ON j.id = a.job
WHERE a.reserved = 1;

-- name: limits_of_job
-- How long a queued job may run, and what says how long it will.
SELECT max_wall_s, grace_s, fingerprint FROM jobs WHERE id = :job;
