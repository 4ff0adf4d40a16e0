-- name: token_by_hash
-- Who holds this token.
SELECT id, name, scopes, worker, last_used_at FROM tokens WHERE hash = :hash AND revoked_at IS NULL;

-- name: add_token
-- A token was made; only its hash is kept.
INSERT INTO tokens (name, hash, scopes, created_at) VALUES (:name, :hash, :scopes, :now);

-- name: bind_token
-- A worker token speaks for one worker: the first that used it.
UPDATE tokens SET worker = :worker WHERE id = :id AND worker IS NULL;

-- name: use_token
-- When it was used last, to the minute.
UPDATE tokens SET last_used_at = :now WHERE id = :id;

-- name: revoke_token
-- It is refused from now on.
UPDATE tokens SET revoked_at = :now WHERE name = :name AND revoked_at IS NULL;

-- name: tokens
-- All tokens, without their secrets.
SELECT name, scopes, worker, created_at, last_used_at, revoked_at FROM tokens ORDER BY created_at, id;
