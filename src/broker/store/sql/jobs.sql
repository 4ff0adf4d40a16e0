-- name: add_spec
-- Keep a specification; members of an array share one.
INSERT INTO specs (json, sources, snapshot) VALUES (:json, :sources, :snapshot) RETURNING id;

-- name: spec_of_job
-- What was asked for.
SELECT specs.json, specs.sources, specs.snapshot, jobs.command, jobs.actor, jobs.array_id, jobs.array_index, jobs.array_values, jobs.changes,
  jobs.priority
FROM jobs JOIN specs ON specs.id = jobs.spec
WHERE jobs.id = :job;

-- name: shape_id
-- The row of these requirements.
SELECT id FROM shapes WHERE key = :key;

-- name: add_shape
-- Requirements that no job had before.
INSERT INTO shapes (key) VALUES (:key) RETURNING id;

-- name: shape_key
-- The requirements of one shape.
SELECT key FROM shapes WHERE id = :shape;

-- name: ready_shapes
-- Requirements with queued jobs, if any may be given away: all that dispatch has to look at, found line by line, without the other shapes; and
-- those of jobs that are left to one worker.
WITH RECURSIVE ready (shape) AS (
  SELECT min(shape) FROM lines
  UNION ALL
  SELECT (SELECT min(lines.shape) FROM lines WHERE lines.shape > ready.shape) FROM ready WHERE ready.shape IS NOT NULL
)
SELECT shapes.id, shapes.key FROM (
  SELECT shape FROM ready
  UNION
  SELECT shape FROM jobs INDEXED BY jobs_preferring WHERE prefers IS NOT NULL AND blocked = 0 AND gated = 0
) AS wanted JOIN shapes ON shapes.id = wanted.shape
WHERE shapes.held = 0;

-- name: ready_shape
-- The same of one shape: its requirements, if it has queued jobs.
SELECT id, key FROM shapes
WHERE id = :shape AND held = 0 AND (
  EXISTS (SELECT 1 FROM lines WHERE lines.shape = shapes.id)
  OR EXISTS (
    SELECT 1 FROM jobs INDEXED BY jobs_preferring WHERE prefers IS NOT NULL AND jobs.shape = shapes.id AND blocked = 0 AND gated = 0
  )
);

-- name: join_line
-- A queued job stands in the line of its shape and place: at its head, if it comes before who stands there.
INSERT INTO lines (shape, place, priority, head)
SELECT shape, place, priority, id FROM jobs WHERE id = :job
ON CONFLICT (shape, place) DO UPDATE SET priority = excluded.priority, head = excluded.head
WHERE excluded.priority > lines.priority OR (excluded.priority = lines.priority AND excluded.head < lines.head);

-- name: leave_line
-- A job left the queue: the next one is the head of its line, if it was this one.
UPDATE lines SET (priority, head) = (
  SELECT jobs.priority, jobs.id FROM jobs
  WHERE jobs.shape = lines.shape AND jobs.place = lines.place AND jobs.state = 'queued' AND jobs.blocked = 0 AND jobs.gated = 0
    AND jobs.prefers IS NULL
  ORDER BY jobs.priority DESC, jobs.id
  LIMIT 1
)
WHERE head = :job
RETURNING shape, place, head;

-- name: pass_in_line
-- The head of a line can't be read: the one behind it has its turn.
UPDATE lines SET (priority, head) = (
  SELECT jobs.priority, jobs.id FROM jobs
  WHERE jobs.shape = lines.shape AND jobs.place = lines.place AND jobs.state = 'queued' AND jobs.blocked = 0 AND jobs.gated = 0
    AND jobs.prefers IS NULL
    AND (jobs.priority < lines.priority OR (jobs.priority = lines.priority AND jobs.id > lines.head))
  ORDER BY jobs.priority DESC, jobs.id
  LIMIT 1
)
WHERE head = :job
RETURNING shape, place, head;

-- name: close_line
-- Nobody stands in this line.
DELETE FROM lines WHERE shape = :shape AND place = :place AND head IS NULL;

-- name: heads_of_lines
-- Who is next in each line, and why it waits as was told last: a page.
SELECT lines.shape, lines.place, lines.head, lines.told_head, lines.told, shapes.key, jobs.project
FROM lines JOIN shapes ON shapes.id = lines.shape JOIN jobs ON jobs.id = lines.head
WHERE (lines.shape, lines.place) > (:after_shape, :after_place)
ORDER BY lines.shape, lines.place
LIMIT :limit;

-- name: tell_of_head
-- Why the head of a line waits is told, if it still is its head.
UPDATE lines SET told_head = head, told = :code WHERE shape = :shape AND place = :place AND head = :head;

-- name: move_count
-- Jobs of a project fewer in a state, and more in another, with the devices that they ask for.
UPDATE counts SET
  n = n + CASE state WHEN :into THEN :by ELSE -:by END,
  gpus = gpus + CASE state WHEN :into THEN :gpus ELSE -:gpus END
WHERE project = :project AND state IN (:out_of, :into);

-- name: count_state
-- More jobs of a project in a state.
INSERT INTO counts (project, state, n, gpus) VALUES (:project, :state, :by, :gpus)
ON CONFLICT (project, state) DO UPDATE SET n = n + excluded.n, gpus = gpus + excluded.gpus;

-- name: move_token_count
-- The same for the jobs of a token that has a quota.
UPDATE token_counts SET
  n = n + CASE state WHEN :into THEN :by ELSE -:by END,
  gpus = gpus + CASE state WHEN :into THEN :gpus ELSE -:gpus END
WHERE token = :token AND state IN (:out_of, :into);

-- name: count_token_state
-- More of them in a state.
INSERT INTO token_counts (token, state, n, gpus) VALUES (:token, :state, :by, :gpus)
ON CONFLICT (token, state) DO UPDATE SET n = n + excluded.n, gpus = gpus + excluded.gpus;

-- name: live_counts
-- Jobs of a project that have not ended, and the devices that they ask for.
SELECT state, n, gpus FROM counts WHERE project = :project AND state IN ('queued', 'assigned', 'running');

-- name: live_token_counts
-- The same for a token.
SELECT state, n, gpus FROM token_counts WHERE token = :token AND state IN ('queued', 'assigned', 'running');

-- name: counts
-- Jobs per state, of one project or of all.
SELECT state, sum(n) AS n FROM counts
WHERE (:project IS NULL OR project = :project)
GROUP BY state
HAVING sum(n) > 0;

-- name: counts_of_array
-- Jobs per state among the members of one array.
SELECT state, count(*) AS n FROM jobs INDEXED BY jobs_by_array WHERE array_id = :array GROUP BY state;

-- name: add_job
-- A job is accepted.
INSERT INTO jobs (
  state, spec, shape, project, name, command, priority, cpus, place, policy, grace_s, preemptible, on_preempt,
  max_wall_s, scheduling_timeout_s, schedule_until, actor, blocked, dependency_policy, env_kept, fingerprint,
  created_at, queued_at, gpus, quota_token, retries, retry_delay_s, retry_on, not_before, waits_until, hold
)
VALUES (
  'queued', :spec, :shape, :project, :name, :command, :priority, :cpus, :place, :policy, :grace_s, :preemptible,
  :on_preempt, :max_wall_s, :scheduling_timeout_s, :schedule_until, :actor, :blocked, :dependency_policy, :env_kept,
  :fingerprint, :now, :now, :gpus, :quota_token, :retries, :retry_delay_s, :retry_on, :not_before, :waits_until, :hold
)
RETURNING id;

-- name: job
-- The lifecycle truth of one job.
SELECT id, version, state, project, shape, policy, grace_s, preemptible, on_preempt, max_wall_s, scheduling_timeout_s,
  schedule_until, attempt, assignment, losses, restarts, lost_assignment, blocked, dependency_policy, cascaded_by,
  exit_code, reason_code, reason, created_at, queued_at, started_at, ended_at, lease_ttl_ms, gpus, quota_token, prefers, prefers_until,
  array_id, adopted_pid, retries, retried, retry_delay_s, retry_on, not_before, waits_until, hold
FROM jobs WHERE id = :job;

-- name: swap_job
-- Write a job's new state, if it is still what was read.
UPDATE jobs SET
  version = :version, state = :state, attempt = :attempt, assignment = :assignment, losses = :losses,
  restarts = :restarts, lost_assignment = :lost_assignment, blocked = :blocked,
  scheduling_timeout_s = :scheduling_timeout_s, schedule_until = :schedule_until,
  cascaded_by = :cascaded_by, exit_code = :exit_code, reason_code = :reason_code, reason = :reason, queued_at = :queued_at, started_at = :started_at,
  ended_at = :ended_at, prefers = :prefers, prefers_until = :prefers_until, retried = :retried, not_before = :not_before,
  waits_until = :waits_until
WHERE id = :id AND version = :expected AND state = :expected_state;

-- name: touch_job
-- Something about a job changed that is not in its own row.
UPDATE jobs SET version = :version WHERE id = :id AND version = :expected;

-- name: heads_of_shapes
-- The next job of each of these shapes, a JSON list of ids, that this worker did not refuse: the best head of a shape's
-- lines, however long those are. One statement, since a worker may fit hundreds.
WITH heads (head) AS (
  SELECT (
    SELECT lines.head FROM lines
    WHERE lines.shape = wanted.value
      AND NOT EXISTS (
        SELECT 1 FROM refusals
        WHERE refusals.worker = :worker AND refusals.place IN (lines.place, '#' || lines.shape)
          AND refusals.expires_at > :listened
      )
    ORDER BY lines.priority DESC, lines.head
    LIMIT 1
  )
  FROM json_each(:shapes) AS wanted CROSS JOIN shapes ON shapes.id = wanted.value AND shapes.held = 0
)
SELECT lines.shape, lines.head AS id, lines.priority FROM heads CROSS JOIN lines ON lines.head = heads.head;

-- name: heads_preferring
-- The jobs that are left to this worker, and whose place it did not refuse.
SELECT shape, id, priority FROM jobs INDEXED BY jobs_preferring
WHERE prefers = :worker AND blocked = 0 AND gated = 0
  AND EXISTS (SELECT 1 FROM shapes WHERE shapes.id = jobs.shape AND shapes.held = 0)
  AND NOT EXISTS (
    SELECT 1 FROM refusals
    WHERE refusals.worker = :worker AND refusals.place IN (jobs.place, '#' || jobs.shape)
      AND refusals.expires_at > :listened
  )
ORDER BY shape, priority DESC, id;

-- name: preferences_over
-- Jobs that are left to a worker no longer: it took too long, or it is not there, or is given no new work.
SELECT jobs.id FROM jobs INDEXED BY jobs_preferring
WHERE prefers IS NOT NULL AND (
  prefers_until <= :listened
  OR NOT EXISTS (
    SELECT 1 FROM workers
    WHERE workers.id = jobs.prefers AND online = 1 AND duty = 'serving' AND accepts = 1 AND polls = 1
  )
)
ORDER BY jobs.id
LIMIT :limit;

-- name: prefer_nobody
-- A queued job is anybody's.
UPDATE jobs SET prefers = NULL, prefers_until = NULL, version = version + 1
WHERE id = :id AND version = :expected AND prefers IS NOT NULL;

-- name: jobs_ahead
-- How many queued jobs may have their turn before one: of each rival, a JSON list, those above its `priority`, and of
-- that priority those before its id `until`, older and younger than `before`. Counting ends at `most`; of each line it
-- begins at the head: those behind are not walked past, and the index alone is read, as long as it is asked for no other
-- column. Of jobs that are left to one worker those of `workers` count.
WITH rivals AS MATERIALIZED (
  SELECT value ->> 'shape' AS shape, value ->> 'priority' AS priority, value ->> 'until' AS until,
    value -> 'refused' AS refused
  FROM json_each(:rivals)
),
left_to_one AS MATERIALIZED (
  SELECT id, prefers, shape, priority FROM jobs INDEXED BY jobs_preferring WHERE prefers IS NOT NULL AND blocked = 0 AND gated = 0
),
led AS NOT MATERIALIZED (
  SELECT rivals.shape, rivals.priority, rivals.until, lines.place FROM rivals CROSS JOIN lines
  WHERE lines.shape = rivals.shape AND lines.priority > rivals.priority
    AND (rivals.refused = '[]' OR lines.place NOT IN (SELECT value FROM json_each(rivals.refused)))
),
level AS NOT MATERIALIZED (
  SELECT shape, priority, until, place FROM led
  UNION ALL
  SELECT rivals.shape, rivals.priority, rivals.until, lines.place FROM rivals CROSS JOIN lines
  WHERE lines.shape = rivals.shape AND lines.priority = rivals.priority AND lines.head < rivals.until
    AND (rivals.refused = '[]' OR lines.place NOT IN (SELECT value FROM json_each(rivals.refused)))
),
ahead AS (
  SELECT rivals.shape, left_to_one.priority > rivals.priority AS higher, left_to_one.id
  FROM left_to_one JOIN workers ON workers.id = left_to_one.prefers JOIN rivals ON rivals.shape = left_to_one.shape
  WHERE workers.name IN (SELECT value FROM json_each(:workers))
    AND (left_to_one.priority, -left_to_one.id) > (rivals.priority, -rivals.until)
  UNION ALL
  SELECT led.shape, 1, jobs.id FROM led CROSS JOIN jobs INDEXED BY jobs_dispatch
  WHERE jobs.shape = led.shape AND jobs.place = led.place AND jobs.state = 'queued' AND jobs.blocked = 0 AND jobs.gated = 0
    AND jobs.priority > led.priority AND jobs.id NOT IN (SELECT id FROM left_to_one)
  UNION ALL
  SELECT level.shape, 0, jobs.id FROM level CROSS JOIN jobs INDEXED BY jobs_dispatch
  WHERE jobs.shape = level.shape AND jobs.place = level.place AND jobs.state = 'queued' AND jobs.blocked = 0 AND jobs.gated = 0
    AND jobs.priority = level.priority AND jobs.id < level.until AND jobs.id NOT IN (SELECT id FROM left_to_one)
  LIMIT :most
)
SELECT shape, sum(higher) AS higher, sum(NOT higher AND id < :before) AS older,
  sum(NOT higher AND id > :before) AS younger
FROM ahead
GROUP BY shape;

-- name: job_view
-- What anyone may see of one job.
SELECT jobs.id, jobs.state, jobs.name, jobs.project, jobs.command, jobs.place, jobs.shape, jobs.array_id, jobs.array_index, jobs.array_values,
  jobs.attempt, jobs.exit_code, jobs.reason_code, jobs.reason, jobs.created_at, jobs.started_at, jobs.ended_at, jobs.blocked, jobs.prefers, jobs.not_before, jobs.hold, jobs.retried, jobs.retries,
  jobs.logs_kept, jobs.retry_of, jobs.retried_as, jobs.lease_ttl_ms, jobs.adopted_pid, jobs.priority, jobs.fingerprint, a.worker_name AS worker, a.state AS assignment_state, a.stop_by, a.stop_why, a.stop_grace_s,
  a.kill_failed, a.limit_code, a.limit_s, a.limit_seen_s, a.given, a.worker AS worker_id, a.progress, a.warnings AS said,
  a.artifacts, a.artifacts_kept
FROM jobs LEFT JOIN assignments AS a ON a.id = jobs.assignment
WHERE jobs.id = :job;

-- name: job_views
-- The same of several jobs, newest first; `ids` is a JSON list.
SELECT jobs.id, jobs.state, jobs.name, jobs.project, jobs.command, jobs.place, jobs.shape, jobs.array_id, jobs.array_index, jobs.array_values,
  jobs.attempt, jobs.exit_code, jobs.reason_code, jobs.reason, jobs.created_at, jobs.started_at, jobs.ended_at, jobs.blocked, jobs.prefers, jobs.not_before, jobs.hold, jobs.retried, jobs.retries,
  jobs.logs_kept, jobs.retry_of, jobs.retried_as, jobs.lease_ttl_ms, jobs.adopted_pid, a.worker_name AS worker, a.state AS assignment_state, a.stop_by, a.stop_why, a.stop_grace_s,
  a.kill_failed, a.limit_code, a.limit_s, a.limit_seen_s, a.given, a.worker AS worker_id, a.progress, a.warnings AS said,
  a.artifacts, a.artifacts_kept
FROM jobs LEFT JOIN assignments AS a ON a.id = jobs.assignment
WHERE jobs.id IN (SELECT value FROM json_each(:ids))
ORDER BY jobs.id DESC;

-- name: page_of_all
-- A page of ids, newest first; the same for each way to ask, so that each has its index.
SELECT id FROM jobs WHERE id < :before ORDER BY id DESC LIMIT :limit;

-- name: page_in_state
-- Jobs in one state: few run among many that ended.
SELECT id FROM jobs WHERE state = :state AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: page_of_project
-- Jobs of one project.
SELECT id FROM jobs WHERE project = :project AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: page_of_project_in_state
-- Jobs of one project in one state.
SELECT id FROM jobs WHERE project = :project AND state = :state AND id < :before ORDER BY id DESC LIMIT :limit;

-- name: page_of_name
-- Jobs of one name. Null parameters do not filter: here and below, what they ask about stands in the index too.
SELECT id FROM jobs INDEXED BY jobs_by_name
WHERE name = :name AND id < :before
  AND (:state IS NULL OR state = :state)
  AND (:project IS NULL OR project = :project)
ORDER BY id DESC
LIMIT :limit;

-- name: page_of_array
-- Members of one array; there are 10,000 at most.
SELECT id FROM jobs INDEXED BY jobs_by_array
WHERE array_id = :array AND id < :before
  AND (:state IS NULL OR state = :state)
  AND (:project IS NULL OR project = :project)
  AND (:name IS NULL OR name = :name)
ORDER BY array_index DESC
LIMIT :limit;

-- name: count_named
-- How many jobs of a name a filter matches.
SELECT count(*) AS n FROM jobs INDEXED BY jobs_by_name
WHERE name = :name
  AND (:state IS NULL OR state = :state)
  AND (:project IS NULL OR project = :project);

-- name: count_of_array
-- How many members of an array a filter matches.
SELECT count(*) AS n FROM jobs INDEXED BY jobs_by_array
WHERE array_id = :array
  AND (:state IS NULL OR state = :state)
  AND (:project IS NULL OR project = :project)
  AND (:name IS NULL OR name = :name);

-- name: live_jobs_of_project
-- Jobs of a project that have not ended.
SELECT id, actor, state, cascaded_by, lost_assignment FROM jobs
WHERE project = :project AND state IN ('queued', 'assigned', 'running')
ORDER BY id;

-- name: job_owner
-- Whose job it is, and how it stands.
SELECT id, actor, state, cascaded_by, lost_assignment FROM jobs WHERE id = :job;

-- name: forget_loss
-- A person cancelled an orphan: its holder does not bring it back.
UPDATE jobs SET lost_assignment = NULL, version = version + 1 WHERE id = :job AND state = 'orphaned';

-- name: forget_cascade
-- A person cancelled it too: no resurrection of a parent may bring it back.
UPDATE jobs SET cascaded_by = NULL WHERE id = :job AND state = 'cancelled';

-- name: set_blocked
-- A queued job becomes ready for dispatch, or waits for others again.
UPDATE jobs SET blocked = :blocked, schedule_until = :schedule_until, version = version + 1
WHERE id = :id AND version = :expected AND state = 'queued';

-- name: schedules_over
-- Queued jobs that were ready for as long as they wanted to wait.
SELECT id FROM jobs INDEXED BY jobs_schedule
WHERE state = 'queued' AND schedule_until <= :listened
ORDER BY schedule_until
LIMIT :limit;

-- name: next_time
-- When the time of the next queued job comes: an instant, and how long the broker has listened then.
SELECT min(not_before) AS at, min(waits_until) AS listened FROM jobs INDEXED BY jobs_before_time
WHERE state = 'queued' AND not_before IS NOT NULL;

-- name: times_come
-- Queued jobs whose time has come.
SELECT id FROM jobs INDEXED BY jobs_before_time
WHERE state = 'queued' AND not_before IS NOT NULL AND (not_before <= :now OR waits_until <= :listened)
ORDER BY not_before
LIMIT :limit;

-- name: change_job
-- What may be changed of a job that has not ended.
UPDATE jobs SET
  version = version + 1, priority = coalesce(:priority, priority), max_wall_s = :max_wall_s, scheduling_timeout_s = :scheduling_timeout_s,
  schedule_until = :schedule_until, not_before = :not_before, waits_until = :waits_until, hold = :hold,
  changes = coalesce(:changes, changes)
WHERE id = :id AND version = :expected;

-- name: command_of_job
-- What it runs, as it is shown.
SELECT command FROM jobs WHERE id = :job;
