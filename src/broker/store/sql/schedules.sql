-- name: put_schedule
-- Make it, or change it; what it has run stays known.
INSERT INTO schedules (name, cron, tz, spec, missed, overlap, paused, actor, token, next_at)
VALUES (:name, :cron, :tz, :spec, :missed, :overlap, :paused, :actor, :token, :next_at)
ON CONFLICT (name) DO UPDATE SET
  cron = :cron, tz = :tz, spec = :spec, missed = :missed, overlap = :overlap, paused = :paused, actor = :actor,
  token = :token, next_at = :next_at;

-- name: schedule
-- One of them.
SELECT name, cron, tz, spec, missed, overlap, paused, actor, token, next_at, last_at, last_job
FROM schedules WHERE name = :name;

-- name: schedules
-- All of them.
SELECT name, cron, tz, spec, missed, overlap, paused, actor, token, next_at, last_at, last_job
FROM schedules ORDER BY name;

-- name: schedules_due
-- Those whose instant has come.
SELECT name FROM schedules INDEXED BY schedules_by_next
WHERE paused = 0 AND next_at <= :now ORDER BY next_at, name LIMIT :limit;

-- name: move_schedule
-- Its next instant.
UPDATE schedules SET next_at = :next_at WHERE name = :name;

-- name: schedule_ran
-- This instant is a job.
UPDATE schedules SET last_at = :at, last_job = :job WHERE name = :name;

-- name: drop_schedule
-- It runs no more.
DELETE FROM schedules WHERE name = :name;

-- name: still_runs
-- Whether a job has not ended, or of an array any member.
SELECT 1 FROM jobs WHERE id = :job AND ended_at IS NULL
UNION ALL
SELECT 1 FROM jobs INDEXED BY jobs_by_array WHERE array_id = :job AND ended_at IS NULL
LIMIT 1;

-- name: pause_schedule
-- It rests, or goes on.
UPDATE schedules SET paused = :paused, next_at = :next_at WHERE name = :name;
