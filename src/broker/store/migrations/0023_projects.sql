-- What was changed of a project while the broker ran, key by key, over jobd.toml. `value` is JSON.
CREATE TABLE project_changes (
  project TEXT NOT NULL,
  field TEXT NOT NULL,
  value TEXT NOT NULL,
  actor TEXT NOT NULL,
  changed_at INTEGER NOT NULL,
  PRIMARY KEY (project, field)
) STRICT, WITHOUT ROWID;
