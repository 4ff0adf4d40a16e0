-- name: begin_lease
-- This job stands for a lease: how long one renewal lasts, until when it is renewed, and what is shown of it.
UPDATE jobs SET lease_ttl_ms = :ttl, lease_until = :until, command = :what WHERE id = :job;

-- name: lease
-- A lease, and whose it is.
SELECT id, actor, place, shape, blocked, prefers, not_before, hold, retried, retries, lease_ttl_ms, lease_until, lease_idle_at FROM jobs
WHERE id = :job AND lease_ttl_ms IS NOT NULL;

-- name: renew_lease
-- Its lessee was heard. One that was told to end is not renewed.
UPDATE jobs SET lease_until = :until WHERE id = :job AND lease_until > 0;

-- name: close_lease
-- The word that it ends was given; nothing renews it any more.
UPDATE jobs SET lease_until = 0 WHERE id = :job AND lease_until > 0;

-- name: lessees_silent
-- Leases whose lessee was not heard for so long, or that were told to end: those that hold something, or wait for it.
SELECT id FROM jobs INDEXED BY jobs_lease
WHERE lease_until <= :listened AND state IN ('queued', 'assigned', 'running')
ORDER BY lease_until
LIMIT :limit;

-- name: leases_with_devices
-- Leases that have devices, of which it was not said that they lie idle.
SELECT jobs.id, a.attempt, a.worker, a.given
FROM jobs INDEXED BY jobs_lease JOIN assignments AS a ON a.id = jobs.assignment
WHERE jobs.lease_until > 0 AND jobs.state IN ('queued', 'assigned', 'running')
  AND jobs.lease_idle_at IS NULL AND a.state = 'started' AND a.given IS NOT NULL;

-- name: note_idle_lease
-- It was said that its devices lie idle; once.
UPDATE jobs SET lease_idle_at = :now WHERE id = :job AND lease_idle_at IS NULL;

-- name: workers_on_machine
-- The workers that are there, on one machine since its boot.
SELECT workers.*, (
    SELECT coalesce(sum(a.cpus), 0) FROM assignments AS a WHERE a.worker = workers.id AND a.reserved = 1
  ) AS used
FROM workers
WHERE online = 1 AND machine = :machine
ORDER BY registered_at, id;
