-- name: note_run
-- A job was done: how long it ran, among the last `most` of what differs from it only in values.
INSERT INTO run_times (similar, runs, at)
SELECT substr(fingerprint, 1, 16), json_array(json_array(substr(fingerprint, 18), :run_s)), :now
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
SELECT substr(fingerprint, 1, 16), json_array(json_array(substr(fingerprint, 18), :run_s)), :now
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
-- from its head on.
SELECT jobs.id, jobs.priority, jobs.fingerprint FROM lines CROSS JOIN jobs
WHERE lines.shape = :shape AND jobs.shape = lines.shape AND jobs.place = lines.place
  AND jobs.state = 'queued' AND jobs.blocked = 0 AND jobs.priority > :priority
UNION ALL
SELECT jobs.id, jobs.priority, jobs.fingerprint FROM lines CROSS JOIN jobs
WHERE lines.shape = :shape AND jobs.shape = lines.shape AND jobs.place = lines.place
  AND jobs.state = 'queued' AND jobs.blocked = 0 AND jobs.priority = :priority AND jobs.id < :before
LIMIT :most;

-- name: run_of_job
-- What a job runs, and since when.
SELECT jobs.state, jobs.fingerprint, jobs.started_at FROM jobs WHERE jobs.id = :job;
