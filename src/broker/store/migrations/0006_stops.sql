-- Limits, preemption and the states they end in. A table's list of states can only be changed by making it anew.

CREATE TABLE jobs_new (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  version INTEGER NOT NULL DEFAULT 0,
  state TEXT NOT NULL CHECK (
    state IN (
      'queued', 'assigned', 'running', 'completed', 'failed', 'cancelled', 'preempted', 'orphaned', 'scheduling_timeout'
    )
  ),
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
  preemptible INTEGER NOT NULL DEFAULT 0 CHECK (preemptible IN (0, 1)),
  on_preempt TEXT NOT NULL DEFAULT 'stop',
  max_wall_s REAL,
  scheduling_timeout_s REAL,
  schedule_until INTEGER,
  actor TEXT NOT NULL,
  array_id INTEGER,
  array_index INTEGER,
  attempt INTEGER NOT NULL DEFAULT 0,
  assignment INTEGER,
  losses INTEGER NOT NULL DEFAULT 0,
  restarts INTEGER NOT NULL DEFAULT 0,
  lost_assignment INTEGER,
  blocked INTEGER NOT NULL DEFAULT 0 CHECK (blocked >= 0),
  dependency_policy TEXT NOT NULL DEFAULT 'success',
  cascaded_by INTEGER,
  exit_code INTEGER,
  reason_code TEXT,
  reason TEXT,
  created_at INTEGER NOT NULL,
  queued_at INTEGER NOT NULL,
  started_at INTEGER,
  ended_at INTEGER,
  CHECK ((ended_at IS NULL) = (state IN ('queued', 'assigned', 'running')))
) STRICT;

INSERT INTO jobs_new (
  id, version, state, spec, shape, project, name, command, priority, cpus, place, policy, grace_s, actor, array_id,
  array_index, attempt, assignment, losses, restarts, lost_assignment, blocked, dependency_policy, cascaded_by,
  exit_code, reason_code, reason, created_at, queued_at, started_at, ended_at
)
SELECT id, version, state, spec, shape, project, name, command, priority, cpus, place, policy, grace_s, actor, array_id,
  array_index, attempt, assignment, losses, restarts, lost_assignment, blocked, dependency_policy, cascaded_by,
  exit_code, reason_code, reason, created_at, queued_at, started_at, ended_at
FROM jobs;

CREATE TABLE assignments_new (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  job INTEGER NOT NULL REFERENCES jobs (id),
  attempt INTEGER NOT NULL,
  worker TEXT NOT NULL,
  worker_name TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  state TEXT NOT NULL CHECK (
    state IN ('pending', 'acked', 'started', 'succeeded', 'failed', 'cancelled', 'preempted', 'refused', 'expired')
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
  wall_until INTEGER,
  kill_failed TEXT,
  limit_code TEXT,
  limit_s REAL,
  limit_seen_s REAL,
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

INSERT INTO assignments_new (
  id, job, attempt, worker, worker_name, epoch, state, token, shim, lease_until, answer, cpus, reserved, stop_id,
  stop_kind, stop_by, stop_why, stop_grace_s, stop_at, stop_early, exit_code, signal, reason_code, reason, created_at,
  acked_at, started_at, ended_at, expired_at, resumed_at, final_size, final_index_size, dropped
)
SELECT id, job, attempt, worker, worker_name, epoch, state, token, shim, lease_until, answer, cpus, reserved, stop_id,
  stop_kind, stop_by, stop_why, stop_grace_s, stop_at, stop_early, exit_code, signal, reason_code, reason, created_at,
  acked_at, started_at, ended_at, expired_at, resumed_at, final_size, final_index_size, dropped
FROM assignments;

-- Ids are never used again, also not those that are gone from the tables.
UPDATE sqlite_sequence SET seq = (SELECT old.seq FROM sqlite_sequence AS old WHERE old.name = 'jobs')
WHERE name = 'jobs_new' AND EXISTS (SELECT 1 FROM sqlite_sequence AS old WHERE old.name = 'jobs');
UPDATE sqlite_sequence SET seq = (SELECT old.seq FROM sqlite_sequence AS old WHERE old.name = 'assignments')
WHERE name = 'assignments_new' AND EXISTS (SELECT 1 FROM sqlite_sequence AS old WHERE old.name = 'assignments');

DROP TABLE assignments;
DROP TABLE jobs;
ALTER TABLE jobs_new RENAME TO jobs;
ALTER TABLE assignments_new RENAME TO assignments;

CREATE INDEX jobs_by_state ON jobs (state, id);
CREATE INDEX jobs_by_project ON jobs (project, id);
CREATE INDEX jobs_by_name ON jobs (name, id, state, project) WHERE name IS NOT NULL;
CREATE INDEX jobs_by_project_state ON jobs (project, state, id);
CREATE INDEX jobs_by_array ON jobs (array_id, array_index, state) WHERE array_id IS NOT NULL;
CREATE INDEX jobs_dispatch ON jobs (shape, place, priority DESC, id) WHERE state = 'queued' AND blocked = 0;

-- Queued jobs that want to wait no longer than until then.
CREATE INDEX jobs_schedule ON jobs (schedule_until) WHERE state = 'queued' AND schedule_until IS NOT NULL;

-- Two live assignments of one job never coexist.
CREATE UNIQUE INDEX assignments_live ON assignments (job) WHERE state IN ('pending', 'acked', 'started');
CREATE INDEX assignments_held ON assignments (worker) WHERE reserved = 1;
CREATE INDEX assignments_leases ON assignments (lease_until) WHERE reserved = 1;

-- Running jobs whose wall limit the broker looks at too.
CREATE INDEX assignments_walls ON assignments (wall_until) WHERE state = 'started' AND wall_until IS NOT NULL;

-- Whose word each value of a specification is; of jobs that were submitted before this, nobody knows.
ALTER TABLE specs ADD COLUMN sources TEXT;
