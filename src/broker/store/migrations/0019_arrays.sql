-- Arrays as a whole; the id is that of the first member. `shape`: its own, where only some of its members may run at
-- once. `counts` of the members in each state are kept, as those of projects are; ends are counted as long as the row is
-- there, also of members that are gone.
CREATE TABLE arrays (
  id INTEGER PRIMARY KEY,
  size INTEGER NOT NULL,
  project TEXT NOT NULL,
  name TEXT,
  command TEXT NOT NULL,
  shape INTEGER REFERENCES shapes (id),
  max_parallel INTEGER,
  max_failures INTEGER,
  created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE array_counts (
  array INTEGER NOT NULL REFERENCES arrays (id) ON DELETE CASCADE,
  state TEXT NOT NULL,
  n INTEGER NOT NULL,
  PRIMARY KEY (array, state)
) STRICT, WITHOUT ROWID;

INSERT INTO arrays (id, size, project, name, command, created_at)
SELECT array_id, max(array_index) + 1, min(project), min(name), min(command), min(created_at)
FROM jobs WHERE array_id IS NOT NULL GROUP BY array_id;

INSERT INTO array_counts (array, state, n)
SELECT array_id, state, count(*) FROM jobs WHERE array_id IS NOT NULL GROUP BY array_id, state;

-- Its value on each axis of a sweep, of a member of one.
ALTER TABLE jobs ADD COLUMN array_values TEXT;

-- As many members of its array run as may: dispatch passes these jobs by, all at once.
ALTER TABLE shapes ADD COLUMN held INTEGER NOT NULL DEFAULT 0 CHECK (held IN (0, 1));

-- Jobs that wait for an array as a whole.
CREATE TABLE array_dependencies (
  child INTEGER NOT NULL REFERENCES jobs (id),
  array INTEGER NOT NULL,
  PRIMARY KEY (child, array)
) STRICT, WITHOUT ROWID;

CREATE INDEX array_dependencies_by_array ON array_dependencies (array, child);
