-- What a worker's machine has, as it said last in this epoch.
CREATE TABLE facts (
  worker TEXT PRIMARY KEY REFERENCES workers (id) ON DELETE CASCADE,
  epoch INTEGER NOT NULL,
  number INTEGER NOT NULL,
  at INTEGER NOT NULL,
  json TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Devices that workers offer. One of them has it; the offers of others are ignored.
CREATE TABLE gpu_offers (
  uuid TEXT NOT NULL,
  worker TEXT NOT NULL REFERENCES workers (id) ON DELETE CASCADE,
  has INTEGER NOT NULL CHECK (has IN (0, 1)),
  PRIMARY KEY (uuid, worker)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX gpu_owners ON gpu_offers (uuid) WHERE has = 1;
CREATE INDEX gpu_offers_of_worker ON gpu_offers (worker);
