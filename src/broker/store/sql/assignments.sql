-- name: assignment
-- One delivery.
SELECT * FROM assignments WHERE id = :assignment;

-- name: assignment_of_job
-- One delivery, by its job and number.
SELECT * FROM assignments WHERE job = :job AND attempt = :attempt;

-- name: assignments_of_job
-- The history of a job.
SELECT * FROM assignments WHERE job = :job ORDER BY attempt;

-- name: held_by_worker
-- All that the broker thinks this worker has, or that still holds resources there.
SELECT * FROM assignments WHERE worker = :worker AND reserved = 1;

-- name: jobs_held_by_worker
-- The jobs of the same.
SELECT id, version, state, project, shape, policy, grace_s, preemptible, on_preempt, max_wall_s, scheduling_timeout_s,
  schedule_until, attempt, assignment, losses, restarts, lost_assignment, blocked, dependency_policy, cascaded_by,
  exit_code, reason_code, reason, created_at, queued_at, started_at, ended_at, lease_ttl_ms, gpus, quota_token, prefers, prefers_until,
  array_id, adopted_pid, retries, retried, retry_delay_s, retry_on, not_before, waits_until, hold
FROM jobs WHERE id IN (SELECT job FROM assignments WHERE worker = :worker AND reserved = 1);

-- name: add_assignment
-- A job is given to a worker.
INSERT INTO assignments (
  job, attempt, worker, worker_name, epoch, state, token, lease_until, answer, cpus, given, reserved, created_at, acked_at
)
VALUES (
  :job, :attempt, :worker, :worker_name, :epoch, :state, :token, :lease_until, :answer, :cpus, :given, 1, :created_at, :acked_at
)
RETURNING id;

-- name: swap_assignment
-- Write a delivery's new state, if it is still what was read and still this holder's.
UPDATE assignments SET
  state = :state, shim = :shim, lease_until = :lease_until, reserved = :reserved, stop_id = :stop_id,
  stop_kind = :stop_kind, stop_by = :stop_by, stop_why = :stop_why, stop_grace_s = :stop_grace_s, stop_at = :stop_at,
  stop_early = :stop_early, wall_until = :wall_until, limit_code = :limit_code, limit_s = :limit_s,
  limit_seen_s = :limit_seen_s, exit_code = :exit_code, signal = :signal, reason_code = :reason_code, reason = :reason,
  acked_at = :acked_at, started_at = :started_at, ended_at = :ended_at, expired_at = :expired_at,
  resumed_at = :resumed_at, final_size = :final_size, final_index_size = :final_index_size, dropped = :dropped
WHERE id = :id AND state = :expected_state AND token = :token;

-- name: swap_expired_assignment
-- The same for a lease that ran out: only while its lease is over.
UPDATE assignments SET
  state = :state, shim = :shim, reserved = :reserved, ended_at = :ended_at, expired_at = :expired_at,
  limit_code = :limit_code, limit_s = :limit_s, limit_seen_s = :limit_seen_s, reason_code = :reason_code, reason = :reason
WHERE id = :id AND state = :expected_state AND token = :token AND lease_until <= :listened;

-- name: given_away
-- What is reserved besides cpus, on all workers: a device may have moved from one to another, and its processes not.
SELECT id, worker, job, attempt, given FROM assignments INDEXED BY assignments_given
WHERE reserved = 1 AND given IS NOT NULL;

-- name: renew
-- The holder was heard: its lease starts again.
UPDATE assignments SET lease_until = :lease_until
WHERE id = :id AND token = :token AND state IN ('acked', 'started');

-- name: log_ends_early
-- A power cut left its holder less output than it had declared: the rest is missing.
UPDATE assignments SET dropped = dropped + final_size - :size, final_size = :size
WHERE job = :job AND attempt = :attempt AND token = :token AND final_size > :size;

-- name: index_ends_early
-- The same of what tells its streams apart.
UPDATE assignments SET final_index_size = :size
WHERE job = :job AND attempt = :attempt AND token = :token AND final_index_size > :size;

-- name: started_before
-- Where the last process of a job ran before this delivery, and how often that said that a checkpoint is safe.
SELECT a.worker, a.worker_name, a.checkpoints, workers.checkpoint_root
FROM assignments AS a LEFT JOIN workers ON workers.id = a.worker
WHERE a.job = :job AND a.attempt < :attempt AND a.started_at IS NOT NULL
ORDER BY a.attempt DESC
LIMIT 1;

-- name: redeliver
-- A pending assignment goes out again, in a newer answer; or an adoption that its worker has not heard of.
UPDATE assignments SET answer = :answer WHERE id = :id AND state IN ('pending', 'acked');

-- name: reserve
-- Its resources are taken again, or free: the tree is known gone.
UPDATE assignments SET reserved = :reserved WHERE id = :id;

-- name: declare_final_size
-- How much output its holder wrote, of an assignment that is over already.
UPDATE assignments SET final_size = :final_size, final_index_size = :final_index_size, dropped = :dropped, reserved = 0
WHERE id = :id AND state = 'expired';

-- name: leases_over
-- Deliveries whose holder was not heard for a lease.
SELECT * FROM assignments
WHERE reserved = 1 AND lease_until <= :listened AND state IN ('pending', 'acked', 'started')
ORDER BY lease_until
LIMIT :limit;

-- name: unstarted
-- Accepted, not started, and not yet asked to stop.
SELECT id FROM assignments
WHERE state = 'acked' AND stop_id IS NULL AND reserved = 1
LIMIT :limit;

-- name: preemptible
-- Running jobs that may be stopped for another, and are not being stopped.
SELECT a.id, a.job, a.attempt, a.cpus, a.given, a.started_at, j.priority, j.project
FROM assignments AS a INDEXED BY assignments_held JOIN jobs AS j ON j.assignment = a.id AND j.id = a.job
WHERE a.reserved = 1 AND a.state = 'started' AND a.stop_id IS NULL AND j.preemptible = 1;

-- name: stops_of_worker
-- What this worker has been asked to stop.
SELECT job, attempt, stop_id, stop_why, stop_grace_s FROM assignments
WHERE worker = :worker AND reserved = 1 AND state IN ('acked', 'started') AND stop_id IS NOT NULL;

-- name: walls_over
-- Running for so long that their own supervisor should have stopped them.
SELECT * FROM assignments INDEXED BY assignments_walls
WHERE state = 'started' AND wall_until <= :listened
ORDER BY wall_until
LIMIT :limit;

-- name: note_kill_failed
-- Which of its processes KILL does not end, as its holder says; null: none.
UPDATE assignments SET kill_failed = :kill_failed WHERE id = :id;

-- name: note_peak
-- What it has used so far, when that has moved by a step.
UPDATE assignments SET peak = :peak WHERE id = :id;

-- name: note_checkpoint
-- It said that a checkpoint is safe: how often so far, and when last.
UPDATE assignments SET checkpoints = :checkpoints, checkpoint_at = :checkpoint_at WHERE id = :id;

-- name: refuse
-- A worker said no to a place, or to all. It holds for a while of listening time: the wall clock may jump.
INSERT INTO refusals (worker, place, code, message, expires_at)
VALUES (:worker, :place, :code, :message, :expires_at)
ON CONFLICT (worker, place) DO UPDATE
SET code = excluded.code, message = excluded.message, expires_at = excluded.expires_at;

-- name: refusals_of_place
-- Who said no to this place, or to all, and still meant it when the broker last noted how long it has listened.
SELECT workers.name AS worker, refusals.code, refusals.message
FROM refusals JOIN workers ON workers.id = refusals.worker
WHERE refusals.place IN (:place, '*', '#' || (SELECT id FROM shapes WHERE key = :key))
  AND refusals.expires_at > (SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'listened_ms')
ORDER BY workers.name;

-- name: refusals
-- All of these, of workers that are there.
SELECT refusals.place, workers.name AS worker
FROM refusals JOIN workers ON workers.id = refusals.worker
WHERE workers.online = 1
  AND refusals.expires_at > (SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'listened_ms');

-- name: forget_refusals
-- A new epoch, or time, makes old refusals void.
DELETE FROM refusals WHERE worker = :worker OR expires_at <= :listened;

-- name: forget_refusals_of_shapes
-- Its devices are not what they were: what it had no room for may fit.
DELETE FROM refusals WHERE worker = :worker AND place LIKE '#%';

-- name: forget_all_refusals
-- A broker that starts asks anew; earlier releases measured refusals by the wall clock.
DELETE FROM refusals;

-- name: place_of_job
-- The directory and environment that a job needs on its worker, as a key.
SELECT place FROM jobs WHERE id = :job;
