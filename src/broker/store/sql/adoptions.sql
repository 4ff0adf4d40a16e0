-- name: add_adopted_job
-- A process is adopted: its job begins where those of others have got to, and its only delivery is the first.
INSERT INTO jobs (
  state, spec, shape, project, name, command, priority, cpus, place, policy, grace_s, preemptible, on_preempt,
  max_wall_s, dependency_policy, env_kept, fingerprint, actor, created_at, queued_at, started_at, gpus, quota_token,
  attempt, adopted_pid, adopted_start
)
VALUES (
  :state, :spec, :shape, :project, :name, :command, :priority, :cpus, :place, :policy, :grace_s, :preemptible,
  :on_preempt, :max_wall_s, :dependency_policy, :env_kept, :fingerprint, :actor, :now, :now, :now, :gpus, :quota_token,
  1, :pid, :start
)
RETURNING id;

-- name: own_assignment
-- The delivery that an adopted job was born with.
UPDATE jobs SET assignment = :assignment WHERE id = :job;

-- name: adoptee_of_job
-- Which process a job is, and whether it was said how long it may be silent.
SELECT jobs.adopted_pid, jobs.adopted_start, coalesce(json_extract(specs.sources, '$.idle_timeout_s') = 'job', 0) AS follow
FROM jobs JOIN specs ON specs.id = jobs.spec
WHERE jobs.id = :job;

-- name: adopted_on_worker
-- The job that is this process of a worker's machine, or may be: one of them is not known by its start.
SELECT jobs.id FROM jobs JOIN assignments AS a ON a.id = jobs.assignment
WHERE jobs.adopted_pid = :pid AND jobs.state = 'running' AND a.worker = :worker
  AND coalesce(jobs.adopted_start = :start, 1)
LIMIT 1;

-- name: workers_to_adopt
-- The workers that are there: on one machine since its boot, or all.
SELECT id, name, epoch, machine, protocol FROM workers
WHERE online = 1 AND (:machine IS NULL OR machine = :machine)
ORDER BY registered_at, id;
