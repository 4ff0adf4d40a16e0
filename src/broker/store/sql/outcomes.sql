-- name: note_progress
-- How far a delivery is, in its own words.
UPDATE assignments SET progress = :progress WHERE id = :id;

-- name: note_left
-- What its end announced: artifacts that follow, and what could not be kept.
UPDATE assignments SET artifacts = :artifacts, artifacts_bytes = :artifacts_bytes, warnings = :warnings WHERE id = :id;

-- name: keep_result
-- What came out of a delivery: said once.
INSERT INTO results (job, attempt, json) VALUES (:job, :attempt, :json) ON CONFLICT (job, attempt) DO NOTHING;

-- name: result
-- What came out of a delivery.
SELECT json FROM results WHERE job = :job AND attempt = :attempt;

-- name: artifact
-- One file that a delivery left, whole or not.
SELECT id, size, sha256, kept FROM artifacts WHERE job = :job AND attempt = :attempt AND name = :name;

-- name: artifacts_here
-- Files that are whole, of one delivery.
SELECT id, name, size, sha256 FROM artifacts WHERE job = :job AND attempt = :attempt AND kept = 1 ORDER BY name LIMIT :limit;

-- name: artifacts_begun
-- How many files of a delivery have begun to arrive, and how large they will be.
SELECT count(*) AS n, coalesce(sum(size), 0) AS bytes FROM artifacts WHERE job = :job AND attempt = :attempt AND name <> :name;

-- name: begin_artifact
-- A file begins to arrive, or begins anew: it was changed on its worker.
INSERT INTO artifacts (job, attempt, name, size, sha256) VALUES (:job, :attempt, :name, :size, :sha256)
ON CONFLICT (job, attempt, name) DO UPDATE SET size = excluded.size, sha256 = excluded.sha256 WHERE kept = 0
RETURNING id;

-- name: keep_artifact
-- It is whole.
UPDATE artifacts SET kept = 1 WHERE id = :id AND kept = 0 AND sha256 = :sha256;

-- name: count_artifacts
-- How many are here.
UPDATE assignments SET artifacts_kept = (
  SELECT count(*) FROM artifacts AS f WHERE f.job = assignments.job AND f.attempt = assignments.attempt AND f.kept = 1
)
WHERE job = :job AND attempt = :attempt;

-- name: drop_artifacts
-- The files of these jobs are removed.
DELETE FROM artifacts WHERE job IN (SELECT value FROM json_each(:ids));

-- name: drop_results
-- And what came out of them.
DELETE FROM results WHERE job IN (SELECT value FROM json_each(:ids));
