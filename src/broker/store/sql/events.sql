-- name: add_event
-- Something happened; written in the transaction that made it happen.
INSERT INTO events (at, type, job, attempt, worker, project, actor, data)
VALUES (:at, :type, :job, :attempt, :worker, :project, :actor, :data);

-- name: events
-- What happened after a point, in order. Null parameters do not filter.
SELECT * FROM events
WHERE seq > :since
  AND (:type IS NULL OR type = :type)
  AND (:project IS NULL OR project = :project)
  AND (:worker IS NULL OR worker = :worker)
  AND (:actor IS NULL OR actor = :actor)
ORDER BY seq
LIMIT :limit;

-- name: events_between
-- All that happened after a point, up to another.
SELECT * FROM events WHERE seq > :since AND seq <= :until ORDER BY seq;

-- name: events_of_job
-- What happened to one job.
SELECT * FROM events
WHERE job = :job AND seq > :since
  AND (:type IS NULL OR type = :type)
ORDER BY seq
LIMIT :limit;

-- name: last_event
-- Where the story ends now.
SELECT coalesce(max(seq), 0) AS seq FROM events;
