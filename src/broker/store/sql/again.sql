-- name: key
-- What was asked under a key, and answered.
SELECT request, answer, job, created_at FROM keys
WHERE actor = :actor AND project = :project AND operation = :operation AND key = :key;

-- name: keep_key
-- A request and its answer, in the transaction that did what the answer says.
INSERT INTO keys (actor, project, operation, key, request, answer, job, created_at)
VALUES (:actor, :project, :operation, :key, :request, :answer, :job, :now);

-- name: drop_keys
-- Keys that nobody repeats any more, so many.
DELETE FROM keys WHERE (actor, project, operation, key) IN (
  SELECT actor, project, operation, key FROM keys INDEXED BY keys_by_age
  WHERE created_at < :before
  ORDER BY created_at
  LIMIT :limit
);

-- name: recent_spec
-- The last job of an equal specification, if it was submitted since, and not just now.
SELECT job, at FROM recent_specs WHERE hash = :hash AND at >= :since AND at < :now;

-- name: keep_recent_spec
-- This specification was submitted now.
INSERT INTO recent_specs (hash, job, at) VALUES (:hash, :job, :now)
ON CONFLICT (hash) DO UPDATE SET job = excluded.job, at = excluded.at;

-- name: drop_recent_specs
-- Specifications that were submitted longer ago than anybody is warned of, so many.
DELETE FROM recent_specs WHERE hash IN (
  SELECT hash FROM recent_specs INDEXED BY recent_specs_by_age WHERE at < :before ORDER BY at LIMIT :limit
);

-- name: retried
-- A job was retried: no resurrection brings it back, its own or that of a parent.
UPDATE jobs SET
  retried_as = :retried_as, cascaded_by = NULL, lost_assignment = NULL, version = version + 1
WHERE id = :job AND retried_as IS NULL AND ended_at IS NOT NULL;

-- name: retried_members
-- The same of members of an array, a JSON list of ids; their retries are those of the new array with the same index.
UPDATE jobs SET
  retried_as = (
    SELECT again.id FROM jobs AS again INDEXED BY jobs_by_array
    WHERE again.array_id = :array AND again.array_index = jobs.array_index
  ),
  cascaded_by = NULL, lost_assignment = NULL, version = version + 1
WHERE id IN (SELECT value FROM json_each(:jobs)) AND retried_as IS NULL AND ended_at IS NOT NULL;

-- name: retries_of_members
-- Whose retries the members of an array are: of those of another one that have their index.
UPDATE jobs SET retry_of = (
  SELECT old.id FROM jobs AS old INDEXED BY jobs_by_array WHERE old.array_id = :old AND old.array_index = jobs.array_index
)
WHERE array_id = :array;

-- name: retry_of
-- This job does another one again.
UPDATE jobs SET retry_of = :retry_of WHERE id = :job;

-- name: to_retry
-- What a retry has to know of a job.
SELECT jobs.id, jobs.state, jobs.project, jobs.array_id, jobs.array_index, jobs.retried_as, jobs.lease_ttl_ms, jobs.adopted_pid,
  jobs.lost_assignment, specs.json, specs.sources
FROM jobs JOIN specs ON specs.id = jobs.spec
WHERE jobs.id = :job;

-- name: members_to_retry
-- The members of an array, and what became of them.
SELECT id, state, array_index, retried_as, lost_assignment FROM jobs INDEXED BY jobs_by_array
WHERE array_id = :array
ORDER BY array_index;

-- name: live_jobs
-- Jobs that have not ended.
SELECT id, actor, state, cascaded_by, lost_assignment FROM jobs
WHERE state IN ('queued', 'assigned', 'running')
ORDER BY id;

-- name: live_jobs_of_name
-- Jobs of one name that have not ended.
SELECT id, actor, state, cascaded_by, lost_assignment FROM jobs INDEXED BY jobs_by_name
WHERE name = :name AND state IN ('queued', 'assigned', 'running')
ORDER BY id;

-- name: labels_of_jobs
-- The labels of these jobs, a JSON list of ids, as they were asked for; those of a member with its index and values.
SELECT jobs.id, jobs.name, jobs.project, jobs.array_index, jobs.array_values, specs.json ->> '$.labels' AS labels
FROM jobs JOIN specs ON specs.id = jobs.spec
WHERE jobs.id IN (SELECT value FROM json_each(:ids));

-- name: nodes_of_project
-- Jobs of a project that depend on others, among its newest; an array is one.
SELECT DISTINCT coalesce(newest.array_id, newest.id) AS node FROM (
  SELECT id, array_id FROM jobs WHERE project = :project ORDER BY id DESC LIMIT :among
) AS newest
WHERE EXISTS (SELECT 1 FROM dependencies WHERE child = newest.id)
  OR EXISTS (SELECT 1 FROM array_dependencies WHERE child = newest.id)
ORDER BY node DESC
LIMIT :limit;

-- name: node_of_job
-- The node that a job is part of: itself, or its array.
SELECT coalesce(array_id, id) AS node FROM jobs WHERE id = :job;

-- name: edges_up
-- On what a node depends, and by which policy.
SELECT DISTINCT coalesce(parents.array_id, dependencies.parent) AS node, children.dependency_policy AS policy
FROM jobs AS children JOIN dependencies ON dependencies.child = children.id
LEFT JOIN jobs AS parents ON parents.id = dependencies.parent
WHERE children.id IN (SELECT :node UNION SELECT id FROM jobs WHERE array_id = :node)
UNION
SELECT DISTINCT array_dependencies.array, children.dependency_policy
FROM jobs AS children JOIN array_dependencies ON array_dependencies.child = children.id
WHERE children.id IN (SELECT :node UNION SELECT id FROM jobs WHERE array_id = :node)
ORDER BY 1
LIMIT :limit;

-- name: edges_down
-- What depends on a node, and by which policy.
SELECT DISTINCT coalesce(children.array_id, children.id) AS node, children.dependency_policy AS policy
FROM dependencies JOIN jobs AS children ON children.id = dependencies.child
WHERE dependencies.parent IN (SELECT :node UNION SELECT id FROM jobs WHERE array_id = :node)
UNION
SELECT DISTINCT coalesce(children.array_id, children.id), children.dependency_policy
FROM array_dependencies JOIN jobs AS children ON children.id = array_dependencies.child
WHERE array_dependencies.array = :node
ORDER BY 1
LIMIT :limit;

-- name: node
-- A single job, as a graph shows it.
SELECT id, name, command, state FROM jobs WHERE id = :node;
