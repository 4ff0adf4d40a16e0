-- Code that jobs run from, or were submitted with: files by their sha256, which lie beside the database. `used_at`: when
-- somebody last put it or asked whether it is there, and so may be about to name it.
CREATE TABLE snapshots (
  sha256 TEXT PRIMARY KEY,
  size INTEGER NOT NULL,
  used_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- As the specification says it: copy:SHA256 or git:SHA256.
ALTER TABLE specs ADD COLUMN snapshot TEXT;

CREATE INDEX specs_by_snapshot ON specs (snapshot) WHERE snapshot IS NOT NULL;
