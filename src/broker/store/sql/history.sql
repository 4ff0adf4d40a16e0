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
