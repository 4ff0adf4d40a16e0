-- name: jobs_with_old_env
-- Jobs that ended long ago, with environment values: a page, oldest first.
SELECT id, spec, ended_at FROM jobs INDEXED BY jobs_with_env
WHERE env_kept = 1 AND ended_at IS NOT NULL AND ended_at < :before AND (ended_at, id) > (:after_at, :after_id)
ORDER BY ended_at, id
LIMIT :limit;

-- name: spec_still_needed
-- A job with this specification that may run, now or again, or has not ended for long. An orphan may come back, and with
-- it what the end of any parent had cancelled: until the last of them is back, another one forbids it.
SELECT jobs.id FROM jobs INDEXED BY jobs_by_spec
WHERE jobs.spec = :spec AND jobs.env_kept = 1 AND (
  jobs.ended_at IS NULL OR jobs.ended_at >= :before OR jobs.state = 'orphaned'
  OR (
    jobs.cascaded_by IS NOT NULL AND EXISTS (
      WITH RECURSIVE waits_for (child, parent) AS (
        SELECT child, parent FROM dependencies
        UNION ALL
        SELECT d.child, members.id
        FROM array_dependencies AS d JOIN jobs AS members INDEXED BY jobs_by_array ON members.array_id = d.array
        WHERE members.state = 'orphaned' OR members.cascaded_by IS NOT NULL
      ), above (id) AS (
        SELECT parent FROM waits_for WHERE child = jobs.id
        UNION
        SELECT w.parent
        FROM above JOIN jobs AS gone ON gone.id = above.id JOIN waits_for AS w ON w.child = gone.id
        WHERE gone.cascaded_by IS NOT NULL
      )
      SELECT 1 FROM above JOIN jobs AS parents ON parents.id = above.id WHERE parents.state = 'orphaned'
    )
  )
)
LIMIT 1;

-- name: spec_text
-- What was asked for, by the id of the specification.
SELECT json FROM specs WHERE id = :spec;

-- name: replace_spec
-- The specification without its environment's values.
UPDATE specs SET json = :json WHERE id = :spec;

-- name: forget_env
-- These jobs have no environment values any more.
UPDATE jobs SET env_kept = 0 WHERE id IN (SELECT value FROM json_each(:ids));

-- name: jobs_with_old_logs
-- Jobs that ended long ago, nothing of which may still run, and whose output is kept: a page, oldest first.
SELECT id, ended_at FROM jobs INDEXED BY jobs_by_end
WHERE logs_kept = 1 AND ended_at IS NOT NULL AND ended_at < :before AND (ended_at, id) > (:after_at, :after_id)
  AND NOT EXISTS (SELECT 1 FROM assignments AS a WHERE a.job = jobs.id AND a.reserved = 1)
ORDER BY ended_at, id
LIMIT :limit;

-- name: declared_output
-- How much output the deliveries of these jobs declared, if their workers are still known.
SELECT a.job, a.attempt, a.final_size, a.final_index_size FROM assignments AS a
WHERE a.job IN (SELECT value FROM json_each(:ids)) AND a.final_size IS NOT NULL
  AND EXISTS (SELECT 1 FROM workers WHERE workers.id = a.worker);

-- name: forget_logs
-- Their output is removed; those of the page of which nothing has changed meanwhile.
UPDATE jobs SET logs_kept = 0
WHERE id IN (SELECT value FROM json_each(:ids)) AND logs_kept = 1 AND ended_at IS NOT NULL AND ended_at < :before
  AND NOT EXISTS (SELECT 1 FROM assignments AS a WHERE a.job = jobs.id AND a.reserved = 1)
RETURNING id;

-- name: logs_kept
-- Whether a job's output was not removed by retention.
SELECT logs_kept FROM jobs WHERE id = :job;

-- name: old_jobs
-- Jobs that ended long ago, whose output is gone, and that no job depends on which has not ended: a page, oldest first.
SELECT id, spec, project, state, array_id, ended_at FROM jobs INDEXED BY jobs_by_end
WHERE logs_kept = 0 AND ended_at IS NOT NULL AND ended_at < :before AND (ended_at, id) > (:after_at, :after_id)
  AND NOT EXISTS (SELECT 1 FROM assignments AS a WHERE a.job = jobs.id AND a.reserved = 1)
  AND NOT EXISTS (
    SELECT 1 FROM dependencies AS d JOIN jobs AS children ON children.id = d.child
    WHERE d.parent = jobs.id AND children.ended_at IS NULL
  )
  AND NOT EXISTS (
    SELECT 1 FROM array_dependencies AS d JOIN jobs AS children ON children.id = d.child
    WHERE d.array = jobs.array_id AND children.ended_at IS NULL
  )
ORDER BY ended_at, id
LIMIT :limit;

-- name: keep_ends
-- What remains of these jobs: how they ended, for those that depend on them.
UPDATE dependencies SET ended = (SELECT state FROM jobs WHERE jobs.id = dependencies.parent)
WHERE parent IN (SELECT value FROM json_each(:ids));

-- name: drop_dependencies
-- These jobs depend on nothing any more.
DELETE FROM dependencies WHERE child IN (SELECT value FROM json_each(:ids));

-- name: last_event_of_jobs
-- The last event of these jobs.
SELECT max(seq) AS seq FROM events WHERE job IN (SELECT value FROM json_each(:ids));

-- name: drop_events_of_jobs
-- Their story goes with them; that their array was submitted is the story of others too.
DELETE FROM events WHERE job IN (SELECT value FROM json_each(:ids)) AND type <> 'array_submitted';

-- name: drop_event_of_array
-- Until none of it is left.
DELETE FROM events WHERE job = :array AND type = 'array_submitted';

-- name: drop_assignments
-- And their history.
DELETE FROM assignments WHERE job IN (SELECT value FROM json_each(:ids));

-- name: drop_jobs
-- And their rows. Their ids are never given to others.
DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(:ids));

-- name: drop_spec
-- A specification that no job has any more.
DELETE FROM specs WHERE id = :spec AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.spec = specs.id);

-- name: uncount
-- Fewer jobs of a project in a state.
UPDATE counts SET n = n - :by WHERE project = :project AND state = :state;

-- name: old_events_of_no_job
-- Events of workers, tokens and the broker itself that are old: a page.
SELECT seq FROM events INDEXED BY events_of_no_job WHERE job IS NULL AND at < :before ORDER BY seq LIMIT :limit;

-- name: drop_events
-- These events.
DELETE FROM events WHERE seq IN (SELECT value FROM json_each(:seqs));

-- name: drop_run_times
-- How long runs took of what was not run for long.
DELETE FROM run_times WHERE similar IN (SELECT similar FROM run_times WHERE at < :before ORDER BY at LIMIT :limit);

-- name: workers_long_lost
-- Workers that were not heard for long, and own no job that has not ended.
SELECT id, name FROM workers
WHERE online = 0 AND last_seen_at < :before
  AND NOT EXISTS (
    SELECT 1 FROM assignments AS a
    WHERE a.worker = workers.id AND a.reserved = 1 AND a.state IN ('pending', 'acked', 'started')
  )
LIMIT :limit;

-- name: last_job_id
-- The largest id that a job was ever given.
SELECT seq AS id FROM sqlite_sequence WHERE name = 'jobs';
