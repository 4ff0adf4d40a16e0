-- Queued jobs stand in lines, one for each shape and place; a line knows its head. A worker that refused some places
-- looks at the other lines' heads, and never walks past the jobs that it refused.
CREATE TABLE lines (
  shape INTEGER NOT NULL REFERENCES shapes (id),
  place TEXT NOT NULL,
  priority INTEGER,
  head INTEGER UNIQUE,
  PRIMARY KEY (shape, place)
) STRICT, WITHOUT ROWID;

CREATE INDEX lines_dispatch ON lines (shape, priority DESC, head);

INSERT INTO lines (shape, place, priority, head)
SELECT shape, place, priority, id FROM (
  SELECT shape, place, priority, id,
    row_number() OVER (PARTITION BY shape, place ORDER BY priority DESC, id) AS position
  FROM jobs WHERE state = 'queued'
)
WHERE position = 1;

DROP INDEX jobs_dispatch;
CREATE INDEX jobs_dispatch ON jobs (shape, place, priority DESC, id) WHERE state = 'queued';

-- Which shapes have queued jobs is what the lines say.
ALTER TABLE shapes DROP COLUMN ready;

-- A live delivery holds its share, and is swapped more often than its lease moves.
DROP INDEX assignments_leases;
CREATE INDEX assignments_leases ON assignments (lease_until) WHERE reserved = 1;
