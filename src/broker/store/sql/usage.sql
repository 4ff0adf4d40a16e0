-- name: use
-- What an owner holds changes: what it held until now is added up. Each day of the wall clock begins with nothing.
INSERT INTO usage (owner, millicpus, gpus, since, folded_at, day)
VALUES (:owner, :millicpus, :gpus, :listened, :listened, :day)
ON CONFLICT (owner) DO UPDATE SET
  cpu_us = cpu_us + millicpus * max(0, excluded.since - since),
  gpu_ms = gpu_ms + gpus * max(0, excluded.since - since),
  today_gpu_ms = CASE WHEN day = excluded.day
    THEN today_gpu_ms + gpus * max(0, excluded.since - since)
    ELSE gpus * min(max(0, excluded.since - since), :into_day)
  END,
  millicpus = max(0, millicpus + excluded.millicpus),
  gpus = max(0, gpus + excluded.gpus),
  since = excluded.since,
  day = excluded.day;

-- name: usage
-- What one owner holds and has held.
SELECT millicpus, gpus, since, cpu_us, gpu_ms, amount, folded_at, day, today_gpu_ms FROM usage WHERE owner = :owner;

-- name: usages
-- The same of all.
SELECT owner, millicpus, gpus, since, cpu_us, gpu_ms, amount, folded_at, day, today_gpu_ms FROM usage;

-- name: fold_usage
-- What was held until now becomes one decayed figure.
UPDATE usage SET amount = :amount, folded_at = :listened, cpu_us = 0, gpu_ms = 0 WHERE owner = :owner;

-- name: forget_usage
-- Nothing is held, and what was is long ago.
DELETE FROM usage WHERE owner = :owner AND millicpus = 0 AND gpus = 0;
