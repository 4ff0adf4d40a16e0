-- name: worker
-- One worker.
SELECT * FROM workers WHERE id = :worker;

-- name: claimant
-- One worker that may be given jobs: what is reserved on it, whether it refused something for all jobs, and whether
-- any are left to it.
SELECT workers.*, (
    SELECT coalesce(sum(a.cpus), 0) FROM assignments AS a WHERE a.worker = workers.id AND a.reserved = 1
  ) AS used, EXISTS (
    SELECT 1 FROM refusals AS r WHERE r.worker = workers.id AND r.place = '*' AND r.expires_at > :listened
  ) AS refused, EXISTS (
    SELECT 1 FROM jobs INDEXED BY jobs_preferring WHERE jobs.prefers = workers.id AND jobs.blocked = 0 AND jobs.gated = 0
  ) AS preferred
FROM workers WHERE id = :worker;

-- name: online_workers
-- The workers that are there.
SELECT id, name, online, protocol, slots, tags, given_tags, duty, duty_why, accepts, polls, platform, gpus, resources
FROM workers WHERE online = 1;

-- name: workers
-- All workers, with what is reserved on each.
SELECT workers.*, (
    SELECT coalesce(sum(a.cpus), 0) FROM assignments AS a WHERE a.worker = workers.id AND a.reserved = 1
  ) AS used
FROM workers
ORDER BY name, registered_at;

-- name: workers_called
-- Who answers to this name or id: who is there comes first, then who was heard last.
SELECT id, name, online FROM workers
WHERE id = :worker OR name = :worker
ORDER BY id = :worker DESC, online DESC, last_seen_at DESC;

-- name: set_duty
-- What is wanted of a worker; and why, if that is the broker's own wish.
UPDATE workers SET duty = :duty, duty_why = :why WHERE id = :worker;

-- name: note_launches
-- Starts that failed here since the last that did not.
UPDATE workers SET launch_failures = :failures WHERE id = :worker;

-- name: forget_launches
-- A start succeeded. Asked with every one of them: it writes nothing where nothing has failed.
UPDATE workers SET launch_failures = '[]' WHERE id = :worker AND launch_failures <> '[]';

-- name: give_tags
-- Tags besides those that it registers with.
UPDATE workers SET given_tags = :tags WHERE id = :worker;

-- name: count_gpus
-- How many devices a worker shows.
UPDATE workers SET gpus = :gpus WHERE id = :worker;

-- name: silent_polls
-- Workers that are heard, and have not asked for work for a while.
SELECT id, name FROM workers WHERE online = 1 AND polls = 1 AND polls_until <= :listened;

-- name: note_silent_polls
-- One of them is not counted on.
UPDATE workers SET polls = 0 WHERE id = :worker;

-- name: note_polls
-- One of them asks for work again.
UPDATE workers SET polls = 1 WHERE id = :worker;

-- name: note_accepts
-- Whether the worker itself takes new work now.
UPDATE workers SET accepts = :accepts WHERE id = :worker;

-- name: first_reserved
-- Whether anything holds resources on a worker.
SELECT id FROM assignments WHERE worker = :worker AND reserved = 1 LIMIT 1;

-- name: live_on_worker
-- Jobs that a worker owns and that have not ended.
SELECT job, attempt FROM assignments
WHERE worker = :worker AND reserved = 1 AND state IN ('pending', 'acked', 'started')
ORDER BY job;

-- name: free_worker
-- A worker that is forgotten holds nothing.
UPDATE assignments SET reserved = 0 WHERE worker = :worker AND reserved = 1;

-- name: drop_refusals
-- Nor does what it refused count any more.
DELETE FROM refusals WHERE worker = :worker;

-- name: remove_worker
-- Forget a worker that is not there.
DELETE FROM workers WHERE id = :worker AND online = 0;

-- name: running_on_workers
-- The deliveries that hold resources, on all workers.
SELECT worker, job, attempt FROM assignments WHERE reserved = 1 ORDER BY worker, job, attempt;

-- name: live_worker_of_name
-- Who answers to this name now.
SELECT id FROM workers WHERE name = :name AND online = 1;

-- name: register_worker
-- A worker process announces itself: a new epoch, with nothing said in it yet.
INSERT INTO workers (
  id, name, online, epoch, machine, host, version, protocol, platform, slots, tags, resources, supervision,
  checkpoint_root, registered_at, last_seen_at, lease_until, polls_until
)
VALUES (
  :id, :name, 1, :epoch, :machine, :host, :version, :protocol, :platform, :slots, :tags, :resources, :supervision,
  :checkpoint_root, :now, :now, :lease_until, :polls_until
)
ON CONFLICT (id) DO UPDATE SET
  name = excluded.name, online = 1, epoch = excluded.epoch, machine = excluded.machine, host = excluded.host,
  version = excluded.version, protocol = excluded.protocol, platform = excluded.platform, slots = excluded.slots, tags = excluded.tags,
  resources = excluded.resources, supervision = excluded.supervision, checkpoint_root = excluded.checkpoint_root,
  last_seen_at = excluded.last_seen_at, lease_until = excluded.lease_until,
  seq = 0, seen = 0, recovered = 0, answers = 0, strangers = 0, accepts = 1, polls = 1,
  polls_until = excluded.polls_until
WHERE workers.epoch < excluded.epoch;

-- name: hear_worker
-- A worker was heard; its list, if this one is newer, is the one that counts.
UPDATE workers SET
  online = 1, last_seen_at = :now, lease_until = :lease_until, seq = max(seq, :seq), seen = max(seen, :seen),
  recovered = max(recovered, :recovered), strangers = :strangers, polls_until = coalesce(:polls_until, polls_until)
WHERE id = :worker AND epoch = :epoch;

-- name: number_answer
-- The next number for a poll answer that carries something. Never one that the worker has seen: a broker that
-- forgot (restored from a backup, or told to forget the worker) would have its answers dropped.
UPDATE workers SET answers = max(answers, seen) + 1 WHERE id = :worker AND epoch = :epoch RETURNING answers;

-- name: silent_workers
-- Workers that were not heard for a lease.
SELECT id, name FROM workers WHERE online = 1 AND lease_until <= :listened;

-- name: lose_worker
-- Nothing was heard of it for a lease.
UPDATE workers SET online = 0 WHERE id = :worker AND online = 1 AND lease_until <= :listened;
