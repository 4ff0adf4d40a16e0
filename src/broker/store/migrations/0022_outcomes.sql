-- What a job says of itself: how far it is, and what its worker could not keep of what it left (JSON). Artifacts: how many
-- files and bytes its end announced, and how many of them are here.
ALTER TABLE assignments ADD COLUMN progress TEXT;
ALTER TABLE assignments ADD COLUMN warnings TEXT;
ALTER TABLE assignments ADD COLUMN artifacts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE assignments ADD COLUMN artifacts_bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE assignments ADD COLUMN artifacts_kept INTEGER NOT NULL DEFAULT 0;

-- What came out of a delivery, as JSON: up to 256 KiB, so it lies apart from the rows that are read all the time.
CREATE TABLE results (
  job INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  json TEXT NOT NULL,
  PRIMARY KEY (job, attempt)
) STRICT;

-- Files that deliveries left behind; the bytes lie in a file named by `id`. `kept`: it is whole, and its checksum verified.
CREATE TABLE artifacts (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  job INTEGER NOT NULL,
  attempt INTEGER NOT NULL,
  name TEXT NOT NULL,
  size INTEGER NOT NULL,
  sha256 TEXT NOT NULL,
  kept INTEGER NOT NULL DEFAULT 0 CHECK (kept IN (0, 1)),
  UNIQUE (job, attempt, name)
) STRICT;
