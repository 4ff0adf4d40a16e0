-- name: add_dependency
-- A child waits for a parent.
INSERT INTO dependencies (child, parent) VALUES (:child, :parent);

-- name: parents
-- What a job depends on, and how these jobs stand; of one whose row is gone, how it ended.
SELECT dependencies.parent AS id, coalesce(jobs.state, dependencies.ended) AS state
FROM dependencies LEFT JOIN jobs ON jobs.id = dependencies.parent
WHERE dependencies.child = :child
ORDER BY dependencies.parent;

-- name: children
-- The jobs that depend on this one.
SELECT child FROM dependencies WHERE parent = :parent ORDER BY child;

-- name: first_children
-- The same, as many as an answer shows.
SELECT child FROM dependencies WHERE parent = :parent ORDER BY child LIMIT :limit;

-- name: open_parent
-- The first parent that a job still waits for.
SELECT jobs.id, jobs.state FROM dependencies JOIN jobs ON jobs.id = dependencies.parent
WHERE dependencies.child = :child AND jobs.state IN ('queued', 'assigned', 'running')
ORDER BY jobs.id
LIMIT 1;

-- name: first_parent
-- Whether a job depends on any other.
SELECT parent FROM dependencies WHERE child = :child LIMIT 1;
