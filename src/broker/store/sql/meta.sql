-- name: get_meta
-- One fact about the installation, such as its id.
SELECT value FROM meta WHERE key = :key;

-- name: set_meta
-- Keep a fact about the installation; a later word replaces an earlier one.
INSERT INTO meta (key, value) VALUES (:key, :value)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;
