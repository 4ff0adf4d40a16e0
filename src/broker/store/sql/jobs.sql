-- name: add_spec
-- Keep a specification; members of an array share one.
INSERT INTO specs (json) VALUES (:json) RETURNING id;

-- name: spec_of_job
-- What was asked for.
SELECT specs.json, jobs.command, jobs.actor, jobs.array_id, jobs.array_index
FROM jobs JOIN specs ON specs.id = jobs.spec
WHERE jobs.id = :job;

-- name: shape_id
-- The row of these requirements, made if it is new.
INSERT INTO shapes (key) VALUES (:key)
ON CONFLICT (key) DO UPDATE SET key = excluded.key
RETURNING id;

-- name: shape_key
-- The requirements of one shape.
SELECT key FROM shapes WHERE id = :shape;

-- name: ready_shapes
-- Shapes with queued jobs: all that dispatch has to look at.
SELECT id, key, ready FROM shapes WHERE ready > 0;

-- name: shape_ready
-- More, or fewer, queued jobs of a shape.
UPDATE shapes SET ready = ready + :by WHERE id = :shape;

-- name: count_state
-- More, or fewer, jobs of a project in a state.
INSERT INTO counts (project, state, n) VALUES (:project, :state, max(0, :by))
ON CONFLICT (project, state) DO UPDATE SET n = n + :by;

-- name: counts
-- Jobs per state, of one project or of all.
SELECT state, sum(n) AS n FROM counts
WHERE (:project IS NULL OR project = :project)
GROUP BY state
HAVING sum(n) > 0;

-- name: counts_of_array
-- Jobs per state among the members of one array.
SELECT state, count(*) AS n FROM jobs WHERE array_id = :array GROUP BY state;

-- name: add_job
-- A job is accepted.
INSERT INTO jobs (
  state, spec, shape, project, name, command, priority, cpus, place, policy, grace_s, actor, blocked,
  dependency_policy, created_at, queued_at
)
VALUES (
  'queued', :spec, :shape, :project, :name, :command, :priority, :cpus, :place, :policy, :grace_s, :actor, :blocked,
  :dependency_policy, :now, :now
)
RETURNING id;

-- name: add_array_member
-- A member of an array whose first id is known.
INSERT INTO jobs (
  id, state, spec, shape, project, name, command, priority, cpus, place, policy, grace_s, actor, blocked,
  dependency_policy, array_id, array_index, created_at, queued_at
)
VALUES (
  :id, 'queued', :spec, :shape, :project, :name, :command, :priority, :cpus, :place, :policy, :grace_s, :actor, :blocked,
  :dependency_policy, :array, :index, :now, :now
);

-- name: make_array_head
-- The first member gives the array its id.
UPDATE jobs SET array_id = id, array_index = 0 WHERE id = :id;

-- name: job
-- The lifecycle truth of one job.
SELECT id, version, state, project, shape, policy, grace_s, attempt, assignment, losses, restarts, lost_assignment,
  blocked, dependency_policy, cascaded_by, exit_code, reason_code, reason, created_at, queued_at, started_at, ended_at
FROM jobs WHERE id = :job;

-- name: swap_job
-- Write a job's new state, if it is still what was read.
UPDATE jobs SET
  version = :version, state = :state, attempt = :attempt, assignment = :assignment, losses = :losses,
  restarts = :restarts, lost_assignment = :lost_assignment, blocked = :blocked, cascaded_by = :cascaded_by, exit_code = :exit_code, reason_code = :reason_code,
  reason = :reason, queued_at = :queued_at, started_at = :started_at, ended_at = :ended_at
WHERE id = :id AND version = :expected AND state = :expected_state;

-- name: head_of_shape
-- The next job of a shape that this worker did not refuse.
SELECT id, priority FROM jobs
WHERE shape = :shape AND state = 'queued' AND blocked = 0
  AND NOT EXISTS (
    SELECT 1 FROM refusals
    WHERE refusals.worker = :worker AND refusals.place = jobs.place AND refusals.expires_at > :now
  )
ORDER BY priority DESC, id
LIMIT 1;

-- name: job_view
-- What anyone may see of one job.
SELECT jobs.id, jobs.state, jobs.name, jobs.project, jobs.command, jobs.place, jobs.shape, jobs.array_id, jobs.array_index,
  jobs.attempt, jobs.exit_code, jobs.reason_code, jobs.reason, jobs.created_at, jobs.started_at, jobs.ended_at, jobs.blocked,
  a.worker_name AS worker, a.state AS assignment_state, a.stop_by, a.stop_why, a.stop_grace_s
FROM jobs LEFT JOIN assignments AS a ON a.id = jobs.assignment
WHERE jobs.id = :job;

-- name: job_views
-- A page of jobs, newest first. Null parameters do not filter.
SELECT jobs.id, jobs.state, jobs.name, jobs.project, jobs.command, jobs.place, jobs.shape, jobs.array_id, jobs.array_index,
  jobs.attempt, jobs.exit_code, jobs.reason_code, jobs.reason, jobs.created_at, jobs.started_at, jobs.ended_at, jobs.blocked,
  a.worker_name AS worker, a.state AS assignment_state, a.stop_by, a.stop_why, a.stop_grace_s
FROM jobs LEFT JOIN assignments AS a ON a.id = jobs.assignment
WHERE jobs.id < :before
  AND (:state IS NULL OR jobs.state = :state)
  AND (:project IS NULL OR jobs.project = :project)
  AND (:array IS NULL OR jobs.array_id = :array)
  AND (:name IS NULL OR jobs.name = :name)
ORDER BY jobs.id DESC
LIMIT :limit;

-- name: job_views_in_state
-- The same for one state, through its index: few jobs run among many that ended.
SELECT jobs.id, jobs.state, jobs.name, jobs.project, jobs.command, jobs.place, jobs.shape, jobs.array_id, jobs.array_index,
  jobs.attempt, jobs.exit_code, jobs.reason_code, jobs.reason, jobs.created_at, jobs.started_at, jobs.ended_at, jobs.blocked,
  a.worker_name AS worker, a.state AS assignment_state, a.stop_by, a.stop_why, a.stop_grace_s
FROM jobs INDEXED BY jobs_by_state LEFT JOIN assignments AS a ON a.id = jobs.assignment
WHERE jobs.state = :state AND jobs.id < :before
  AND (:project IS NULL OR jobs.project = :project)
  AND (:array IS NULL OR jobs.array_id = :array)
  AND (:name IS NULL OR jobs.name = :name)
ORDER BY jobs.id DESC
LIMIT :limit;

-- name: count_named
-- How many jobs a filter with a name matches.
SELECT count(*) AS n FROM jobs
WHERE name = :name
  AND (:state IS NULL OR state = :state)
  AND (:project IS NULL OR project = :project)
  AND (:array IS NULL OR array_id = :array);

-- name: count_of_array_in_project
-- How many members of an array a filter matches.
SELECT count(*) AS n FROM jobs
WHERE array_id = :array
  AND (:state IS NULL OR state = :state)
  AND (:project IS NULL OR project = :project);

-- name: jobs_of_array
-- The ids of an array's members.
SELECT id FROM jobs WHERE array_id = :array ORDER BY array_index;

-- name: live_jobs_of_project
-- Jobs of a project that have not ended.
SELECT id FROM jobs
WHERE project = :project AND state IN ('queued', 'assigned', 'running')
ORDER BY id;

-- name: job_owner
-- Whose job it is, and how it stands.
SELECT id, actor, state FROM jobs WHERE id = :job;

-- name: forget_cascade
-- A person cancelled it too: no resurrection of a parent may bring it back.
UPDATE jobs SET cascaded_by = NULL WHERE id = :job AND state = 'cancelled';

-- name: set_blocked
-- A queued job becomes ready for dispatch, or waits for others again.
UPDATE jobs SET blocked = :blocked, version = version + 1
WHERE id = :id AND version = :expected AND state = 'queued';
