-- Jobs that are submitted again and again. `next_at`: the next instant, moved on in the transaction that submits.
-- `token`: whose quota counts.
CREATE TABLE schedules (
  name TEXT PRIMARY KEY,
  cron TEXT NOT NULL,
  tz TEXT NOT NULL,
  spec TEXT NOT NULL,
  missed TEXT NOT NULL CHECK (missed IN ('skip', 'run_once')),
  overlap TEXT NOT NULL CHECK (overlap IN ('skip', 'allow')),
  paused INTEGER NOT NULL,
  actor TEXT NOT NULL,
  token INTEGER,
  next_at INTEGER NOT NULL,
  last_at INTEGER,
  last_job INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX schedules_by_next ON schedules (next_at) WHERE paused = 0;
