-- name: add_array
-- Many jobs that are one thing.
INSERT INTO arrays (id, size, project, name, command, shape, max_parallel, max_failures, created_at)
VALUES (:id, :size, :project, :name, :command, :shape, :max_parallel, :max_failures, :now);

-- name: array
-- An array as a whole.
SELECT id, size, project, name, command, shape, max_parallel, max_failures, created_at FROM arrays WHERE id = :array;

-- name: count_of_state
-- More members of an array in a state, or fewer.
INSERT INTO array_counts (array, state, n) VALUES (:array, :state, :by)
ON CONFLICT (array, state) DO UPDATE SET n = n + excluded.n;

-- name: array_counts
-- Members per state.
SELECT state, n FROM array_counts WHERE array = :array AND n > 0;

-- name: hold_shape
-- No more members of an array may run now, or some may again. No row changes if that was so.
UPDATE shapes SET held = :held WHERE id = :shape AND held <> :held;

-- name: set_max_parallel
-- How many members of an array may run at once, from now on.
UPDATE arrays SET max_parallel = :most WHERE id = :array;

-- name: make_array_head
-- The first member gives the array its id.
UPDATE jobs SET array_id = id, array_index = :index, shape = :shape, array_values = :values WHERE id = :id;

-- name: add_array_members
-- The other members of an array, like its first one in all but id and index; `members` is a JSON list of what is their
-- own: [index, name, command, place, fingerprint, values] of each, or the index alone.
INSERT INTO jobs (
  id, state, spec, shape, project, name, command, priority, cpus, place, policy, grace_s, preemptible,
  on_preempt, max_wall_s, scheduling_timeout_s, schedule_until, actor, blocked, dependency_policy, env_kept, fingerprint,
  array_id, array_index, array_values, created_at, queued_at, gpus, quota_token, retries, retry_delay_s, retry_on, not_before, waits_until,
  hold
)
SELECT jobs.id + members.key + 1, jobs.state, jobs.spec, jobs.shape, jobs.project,
  coalesce(json_extract(members.value, '$[1]'), jobs.name), coalesce(json_extract(members.value, '$[2]'), jobs.command),
  jobs.priority, jobs.cpus, coalesce(json_extract(members.value, '$[3]'), jobs.place), jobs.policy, jobs.grace_s,
  jobs.preemptible, jobs.on_preempt, jobs.max_wall_s, jobs.scheduling_timeout_s, jobs.schedule_until, jobs.actor,
  jobs.blocked, jobs.dependency_policy, jobs.env_kept, coalesce(json_extract(members.value, '$[4]'), jobs.fingerprint),
  jobs.id, json_extract(members.value, '$[0]'), json_extract(members.value, '$[5]'), jobs.created_at, jobs.queued_at, jobs.gpus,
  jobs.quota_token, jobs.retries, jobs.retry_delay_s, jobs.retry_on, jobs.not_before, jobs.waits_until, jobs.hold
FROM json_each(:members) AS members CROSS JOIN jobs
WHERE jobs.id = :array
ORDER BY members.key;

-- name: depend_on_same
-- Each member of an array waits for the member of another that has its index.
INSERT OR IGNORE INTO dependencies (child, parent)
SELECT child.id, parent.id
FROM jobs AS child INDEXED BY jobs_by_array
CROSS JOIN jobs AS parent INDEXED BY jobs_by_array ON parent.array_id = :parent AND parent.array_index = child.array_index
WHERE child.array_id = :array;

-- name: without_partner
-- The first member of an array for which another one has none with its index.
SELECT child.array_index FROM jobs AS child INDEXED BY jobs_by_array
WHERE child.array_id = :array AND NOT EXISTS (
  SELECT 1 FROM jobs AS parent INDEXED BY jobs_by_array
  WHERE parent.array_id = :parent AND parent.array_index = child.array_index
)
ORDER BY child.array_index
LIMIT 1;

-- name: members_with_parents
-- How many jobs each member waits for: once they stand in the table.
UPDATE jobs SET blocked = (
  SELECT count(*) FROM dependencies JOIN jobs AS parent ON parent.id = dependencies.parent
  WHERE dependencies.child = jobs.id AND parent.state IN ('queued', 'assigned', 'running')
) + :arrays
WHERE array_id = :array;

-- name: members_without_clock
-- Nobody counts the time of one that waits for others.
UPDATE jobs SET schedule_until = CASE WHEN blocked = 0 AND gated = 0 THEN :schedule_until END WHERE array_id = :array;

-- name: never_met
-- The first member whose parent ended so that it can never start; `ends` is a JSON list of such states.
SELECT child.array_index, parent.id, parent.state
FROM jobs AS child INDEXED BY jobs_by_array
JOIN dependencies ON dependencies.child = child.id
JOIN jobs AS parent ON parent.id = dependencies.parent
WHERE child.array_id = :array AND parent.state IN (SELECT value FROM json_each(:ends))
ORDER BY child.array_index
LIMIT 1;

-- name: join_lines_of_array
-- Its members that are ready stand in their lines: each line hears of the first one.
INSERT INTO lines (shape, place, priority, head)
SELECT shape, place, priority, min(id) FROM jobs WHERE array_id = :array AND blocked = 0 AND gated = 0 GROUP BY place
ON CONFLICT (shape, place) DO UPDATE SET priority = excluded.priority, head = excluded.head
WHERE excluded.priority > lines.priority OR (excluded.priority = lines.priority AND excluded.head < lines.head);

-- name: depend_on_array
-- A job waits for all members of an array.
INSERT INTO array_dependencies (child, array)
SELECT value, :array FROM json_each(:children);

-- name: arrays_waited_for
-- Arrays that a job depends on.
SELECT array FROM array_dependencies WHERE child = :child ORDER BY array;

-- name: children_of_array
-- The jobs that depend on an array as a whole, and may still start or be started again.
SELECT jobs.id FROM array_dependencies AS d JOIN jobs ON jobs.id = d.child
WHERE d.array = :array AND (jobs.state = 'queued' OR jobs.cascaded_by IS NOT NULL)
ORDER BY jobs.id;

-- name: open_array
-- The first array that a job still waits for.
SELECT d.array AS id FROM array_dependencies AS d
WHERE d.child = :child AND EXISTS (
  SELECT 1 FROM array_counts AS c
  WHERE c.array = d.array AND c.n > 0 AND c.state IN ('queued', 'assigned', 'running')
)
ORDER BY d.array
LIMIT 1;

-- name: members_of_array
-- Whose the members are, and how they stand.
SELECT id, actor, state, cascaded_by, lost_assignment FROM jobs WHERE array_id = :array ORDER BY array_index;

-- name: cancel_waiting
-- Queued jobs are stopped before any worker had them; `ids` is a JSON list.
UPDATE jobs SET
  version = version + 1, state = :state, reason_code = :reason_code, reason = :reason, exit_code = NULL,
  ended_at = :ended_at, lost_assignment = NULL, prefers = NULL, prefers_until = NULL
WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'queued';

-- name: of_whom
-- What these jobs are counted as.
SELECT project, quota_token, array_id, gpus, count(*) AS n, min(id) AS first FROM jobs
WHERE id IN (SELECT value FROM json_each(:ids))
GROUP BY project, quota_token, array_id, gpus;

-- name: add_events_of_jobs
-- The same happened to each of these jobs.
INSERT INTO events (at, type, job, project, actor, data)
SELECT :at, :type, id, project, :actor, :data FROM jobs
WHERE id IN (SELECT value FROM json_each(:ids))
ORDER BY id;

-- name: heads_among
-- Those of these jobs that stand at the head of a line.
SELECT head FROM lines WHERE head IN (SELECT value FROM json_each(:ids));

-- name: parents_among
-- Those of these jobs that others depend on.
SELECT DISTINCT parent FROM dependencies WHERE parent IN (SELECT value FROM json_each(:ids)) ORDER BY parent;

-- name: waiting_members
-- Members of an array that no worker has.
SELECT id FROM jobs INDEXED BY jobs_by_array WHERE array_id = :array AND state = 'queued';

-- name: worst_ends
-- Members that have ended; those that did not complete come first.
SELECT id FROM jobs INDEXED BY jobs_by_array
WHERE array_id = :array AND state NOT IN ('queued', 'assigned', 'running')
ORDER BY state = 'completed', array_index
LIMIT :limit;

-- name: live_members
-- Members that have not ended.
SELECT id, state FROM jobs INDEXED BY jobs_by_array
WHERE array_id = :array AND state IN ('queued', 'assigned', 'running')
ORDER BY array_index
LIMIT :limit;

-- name: page_folded
-- A page of jobs, newest first, in which an array is one entry: from each the next one is looked for, behind its array.
WITH RECURSIVE folded (n, id, array_id) AS (
  SELECT 1, jobs.id, jobs.array_id FROM jobs WHERE jobs.id = (SELECT max(j.id) FROM jobs AS j WHERE j.id < :before)
  UNION ALL
  SELECT folded.n + 1, jobs.id, jobs.array_id FROM folded JOIN jobs ON jobs.id = (
    SELECT max(j.id) FROM jobs AS j WHERE j.id < coalesce(folded.array_id, folded.id)
  )
  WHERE folded.n < :limit
)
SELECT id, array_id FROM folded ORDER BY n;

-- name: page_folded_of_project
-- The same of one project.
WITH RECURSIVE folded (n, id, array_id) AS (
  SELECT 1, jobs.id, jobs.array_id FROM jobs WHERE jobs.id = (
    SELECT max(j.id) FROM jobs AS j INDEXED BY jobs_by_project WHERE j.project = :project AND j.id < :before
  )
  UNION ALL
  SELECT folded.n + 1, jobs.id, jobs.array_id FROM folded JOIN jobs ON jobs.id = (
    SELECT max(j.id) FROM jobs AS j INDEXED BY jobs_by_project
    WHERE j.project = :project AND j.id < coalesce(folded.array_id, folded.id)
  )
  WHERE folded.n < :limit
)
SELECT id, array_id FROM folded ORDER BY n;

-- name: arrays_of
-- Arrays of which these jobs are members, or for which they waited.
SELECT array_id AS id FROM jobs WHERE id IN (SELECT value FROM json_each(:ids)) AND array_id IS NOT NULL
UNION
SELECT array FROM array_dependencies WHERE child IN (SELECT value FROM json_each(:ids));

-- name: drop_array_dependencies
-- These jobs wait for no array any more.
DELETE FROM array_dependencies WHERE child IN (SELECT value FROM json_each(:ids));

-- name: drop_arrays
-- Arrays without members, for which no job waits, or may again.
DELETE FROM arrays
WHERE id IN (SELECT value FROM json_each(:arrays))
  AND NOT EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_by_array WHERE jobs.array_id = arrays.id)
  AND NOT EXISTS (SELECT 1 FROM array_dependencies AS d WHERE d.array = arrays.id)
RETURNING id, shape;

-- name: drop_shape
-- Requirements that were one array's own.
DELETE FROM shapes WHERE id = :shape;
