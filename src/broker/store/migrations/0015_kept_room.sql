-- Queued jobs that fit nowhere now, and the worker whose room is kept for each; null: none has enough even with nothing
-- to do, when that was looked at. A row counts only while its job is queued. `starts_at` is of listening; null: unknown.
CREATE TABLE kept_room (
  job INTEGER PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
  worker TEXT UNIQUE REFERENCES workers (id) ON DELETE CASCADE,
  starts_at INTEGER,
  after TEXT NOT NULL,
  looked_at INTEGER NOT NULL
) STRICT;
