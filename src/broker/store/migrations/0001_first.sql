-- Jobs, their deliveries, and what happened to them. Instants are integer milliseconds of the broker's
-- clock; lease_until is milliseconds of the time in which the broker has listened.

CREATE TABLE specs (
  id INTEGER PRIMARY KEY,
  json TEXT NOT NULL
) STRICT;

-- Requirements that jobs share; ready counts its queued jobs, so that dispatch visits only shapes with work.
CREATE TABLE shapes (
  id INTEGER PRIMARY KEY,
  key TEXT NOT NULL UNIQUE,
  ready INTEGER NOT NULL DEFAULT 0 CHECK (ready >= 0)
) STRICT;

CREATE TABLE jobs (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  version INTEGER NOT NULL DEFAULT 0,
  state TEXT NOT NULL CHECK (state IN ('queued', 'assigned', 'running', 'completed', 'failed', 'cancelled', 'orphaned')),
  spec INTEGER NOT NULL REFERENCES specs (id),
  shape INTEGER NOT NULL REFERENCES shapes (id),
  project TEXT NOT NULL,
  name TEXT,
  command TEXT NOT NULL,
  priority INTEGER NOT NULL,
  cpus REAL NOT NULL,
  place TEXT NOT NULL,
  policy TEXT NOT NULL,
  grace_s REAL NOT NULL,
  actor TEXT NOT NULL,
  array_id INTEGER,
  array_index INTEGER,
  attempt INTEGER NOT NULL DEFAULT 0,
  assignment INTEGER,
  losses INTEGER NOT NULL DEFAULT 0,
  restarts INTEGER NOT NULL DEFAULT 0,
  lost_assignment INTEGER,
  exit_code INTEGER,
  reason_code TEXT,
  reason TEXT,
  created_at INTEGER NOT NULL,
  queued_at INTEGER NOT NULL,
  started_at INTEGER,
  ended_at INTEGER,
  CHECK ((ended_at IS NOT NULL) = (state IN ('completed', 'failed', 'cancelled', 'orphaned')))
) STRICT;

CREATE INDEX jobs_dispatch ON jobs (shape, priority DESC, id) WHERE state = 'queued';
CREATE INDEX jobs_by_state ON jobs (state, id);
CREATE INDEX jobs_by_project ON jobs (project, id);
CREATE INDEX jobs_by_array ON jobs (array_id, array_index) WHERE array_id IS NOT NULL;

-- Jobs per project and state: kept, not counted.
CREATE TABLE counts (
  project TEXT NOT NULL,
  state TEXT NOT NULL,
  n INTEGER NOT NULL CHECK (n >= 0),
  PRIMARY KEY (project, state)
) STRICT, WITHOUT ROWID;

CREATE TABLE workers (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  online INTEGER NOT NULL CHECK (online IN (0, 1)),
  epoch INTEGER NOT NULL,
  machine TEXT NOT NULL,
  host TEXT NOT NULL,
  version TEXT NOT NULL,
  platform TEXT,
  slots REAL NOT NULL,
  tags TEXT NOT NULL,
  supervision TEXT NOT NULL,
  registered_at INTEGER NOT NULL,
  last_seen_at INTEGER NOT NULL,
  lease_until INTEGER NOT NULL,
  seq INTEGER NOT NULL DEFAULT 0,
  seen INTEGER NOT NULL DEFAULT 0,
  recovered INTEGER NOT NULL DEFAULT 0,
  answers INTEGER NOT NULL DEFAULT 0,
  strangers INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE UNIQUE INDEX workers_live_name ON workers (name) WHERE online = 1;

CREATE TABLE assignments (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  job INTEGER NOT NULL REFERENCES jobs (id),
  attempt INTEGER NOT NULL,
  worker TEXT NOT NULL,
  worker_name TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (
    state IN ('pending', 'acked', 'started', 'succeeded', 'failed', 'cancelled', 'refused', 'expired')
  ),
  token TEXT NOT NULL,
  shim TEXT,
  lease_until INTEGER NOT NULL,
  answer INTEGER NOT NULL,
  cpus REAL NOT NULL,
  reserved INTEGER NOT NULL CHECK (reserved IN (0, 1)),
  stop_id TEXT,
  stop_kind TEXT,
  stop_by TEXT,
  stop_why TEXT,
  stop_grace_s REAL,
  stop_at INTEGER,
  stop_early INTEGER,
  exit_code INTEGER,
  signal TEXT,
  reason_code TEXT,
  reason TEXT,
  created_at INTEGER NOT NULL,
  acked_at INTEGER,
  started_at INTEGER,
  ended_at INTEGER,
  expired_at INTEGER,
  resumed_at INTEGER,
  final_size INTEGER,
  final_index_size INTEGER,
  dropped INTEGER NOT NULL DEFAULT 0,
  UNIQUE (job, attempt)
) STRICT;

-- Two live assignments of one job never coexist.
CREATE UNIQUE INDEX assignments_live ON assignments (job) WHERE state IN ('pending', 'acked', 'started');
CREATE INDEX assignments_held ON assignments (worker) WHERE reserved = 1;
CREATE INDEX assignments_leases ON assignments (lease_until) WHERE state IN ('pending', 'acked', 'started');

-- A worker said no to a place (directory, environment); '*' is the worker itself.
CREATE TABLE refusals (
  worker TEXT NOT NULL,
  place TEXT NOT NULL,
  code TEXT NOT NULL,
  message TEXT NOT NULL,
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (worker, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  type TEXT NOT NULL,
  job INTEGER,
  attempt INTEGER,
  worker TEXT,
  project TEXT,
  actor TEXT,
  data TEXT
) STRICT;

CREATE INDEX events_by_job ON events (job, seq) WHERE job IS NOT NULL;

CREATE TABLE tokens (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE,
  hash TEXT NOT NULL UNIQUE,
  scopes TEXT NOT NULL,
  worker TEXT,
  created_at INTEGER NOT NULL,
  last_used_at INTEGER,
  revoked_at INTEGER
) STRICT;
