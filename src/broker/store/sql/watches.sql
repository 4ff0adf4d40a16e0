-- name: add_watch
-- Somebody waits for these jobs, a JSON list of ids, or for an array.
INSERT INTO watches (id, actor, jobs, array, mode, created_at) VALUES (:id, :actor, :jobs, :array, :mode, :now);

-- name: watch
-- What is waited for, and by whom.
SELECT id, actor, jobs, array, mode, created_at, cancelled_at FROM watches WHERE id = :id;

-- name: cancel_watch
-- Nobody waits for it any more. What it waited for goes on.
UPDATE watches SET cancelled_at = :now WHERE id = :id AND cancelled_at IS NULL;

-- name: drop_watches
-- Those that nobody asks for any more, some at a time.
DELETE FROM watches WHERE id IN (SELECT id FROM watches WHERE created_at < :before ORDER BY created_at LIMIT :limit);
