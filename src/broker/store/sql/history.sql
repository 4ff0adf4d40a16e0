-- name: note_run
-- A job was done: how long it ran and what it used, among the last `most` of what differs from it only in values.
INSERT INTO run_times (similar, runs, at)
SELECT substr(fingerprint, 1, 16), json_array(json_array(substr(fingerprint, 18), :run_s, json(:use))), :now
FROM jobs WHERE id = :job AND fingerprint IS NOT NULL
ON CONFLICT (similar) DO UPDATE SET
  runs = json_insert(
    CASE WHEN json_array_length(runs) < :most THEN runs ELSE json_remove(runs, '$[0]') END,
    '$[#]', json_extract(excluded.runs, '$[0]')
  ),
  at = excluded.at;

-- name: note_failed_run
-- The same of one that failed: kept apart, since it says nothing of how long a success takes.
INSERT INTO run_times (similar, failed, at)
SELECT substr(fingerprint, 1, 16), json_array(json_array(substr(fingerprint, 18), :run_s, json(:use))), :now
FROM jobs WHERE id = :job AND fingerprint IS NOT NULL
ON CONFLICT (similar) DO UPDATE SET
  failed = json_insert(
    CASE WHEN json_array_length(failed) < :most THEN failed ELSE json_remove(failed, '$[0]') END,
    '$[#]', json_extract(excluded.failed, '$[0]')
  ),
  at = excluded.at;

-- name: run_times
-- How long runs took that differ only in values.
SELECT runs, failed FROM run_times WHERE similar = :similar;

-- name: recent_commands
-- The commands whose ends are the newest.
SELECT similar, runs, failed FROM run_times ORDER BY at DESC LIMIT :limit;

-- name: what_was_asked
-- What a job is and what it asked for, while it is kept.
SELECT jobs.command, jobs.fingerprint, specs.json FROM jobs JOIN specs ON specs.id = jobs.spec WHERE jobs.id = :job;

-- name: running_now
-- What holds room on workers that are there, and what tells when it ends: what it runs, since when, and a stop.
SELECT workers.name AS worker, a.job, a.attempt, a.cpus, a.started_at, a.stop_id, a.stop_grace_s, a.stop_at,
  jobs.fingerprint
FROM assignments AS a INDEXED BY assignments_held
JOIN workers ON workers.id = a.worker
JOIN jobs ON jobs.id = a.job
WHERE a.reserved = 1 AND workers.online = 1
ORDER BY a.job, a.attempt;

-- name: shape_ahead
-- Queued jobs of one shape that have their turn before a job of this priority and id: at most `most`, of each line
-- from its head on, but of none to whose place everybody said no (a JSON list). Of jobs that are left to one worker
-- those of `workers` count.
WITH standing AS (
  SELECT place FROM lines
  WHERE shape = :shape AND (priority > :priority OR (priority = :priority AND head < :before))
    AND (:refused = '[]' OR place NOT IN (SELECT value FROM json_each(:refused)))
)
SELECT jobs.id, jobs.priority, jobs.fingerprint FROM standing CROSS JOIN jobs
WHERE jobs.shape = :shape AND jobs.place = standing.place
  AND jobs.state = 'queued' AND jobs.blocked = 0 AND jobs.prefers IS NULL AND jobs.priority > :priority
UNION ALL
SELECT jobs.id, jobs.priority, jobs.fingerprint FROM standing CROSS JOIN jobs
WHERE jobs.shape = :shape AND jobs.place = standing.place
  AND jobs.state = 'queued' AND jobs.blocked = 0 AND jobs.prefers IS NULL
  AND jobs.priority = :priority AND jobs.id < :before
UNION ALL
SELECT jobs.id, jobs.priority, jobs.fingerprint
FROM jobs INDEXED BY jobs_preferring CROSS JOIN workers ON workers.id = jobs.prefers
WHERE jobs.prefers IS NOT NULL AND jobs.shape = :shape AND jobs.blocked = 0
  AND workers.name IN (SELECT value FROM json_each(:workers))
  AND (jobs.priority > :priority OR (jobs.priority = :priority AND jobs.id < :before))
LIMIT :most;

-- name: run_of_job
-- What a job runs, and since when.
SELECT jobs.state, jobs.fingerprint, jobs.started_at FROM jobs WHERE jobs.id = :job;
