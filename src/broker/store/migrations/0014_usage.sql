-- What the jobs of a project hold now, and have held: millicpus and devices, and these times milliseconds of listening,
-- so that no clock that jumps changes it. `amount` is what was held before `folded_at`, weighted and decayed to then.
CREATE TABLE usage (
  owner TEXT PRIMARY KEY,
  millicpus INTEGER NOT NULL DEFAULT 0,
  gpus INTEGER NOT NULL DEFAULT 0,
  since INTEGER NOT NULL,
  cpu_us INTEGER NOT NULL DEFAULT 0,
  gpu_ms INTEGER NOT NULL DEFAULT 0,
  amount REAL NOT NULL DEFAULT 0,
  folded_at INTEGER NOT NULL DEFAULT 0,
  day INTEGER NOT NULL DEFAULT 0,
  today_gpu_ms INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

INSERT INTO usage (owner, millicpus, gpus, since, folded_at)
SELECT 'project:' || jobs.project, sum(CAST(round(a.cpus * 1000) AS INTEGER)),
  sum(coalesce(json_array_length(a.given, '$.gpus'), 0)), listened.ms, listened.ms
FROM jobs JOIN assignments AS a ON a.id = jobs.assignment
CROSS JOIN (
  SELECT coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'listened_ms'), 0) AS ms
) AS listened
WHERE jobs.state IN ('assigned', 'running')
GROUP BY jobs.project;
