-- What quotas go by is kept, and never counted: the devices that jobs ask for, in each state that is no end (of ends
-- `gpus` says nothing), and the same for those of a token that has a quota.
ALTER TABLE jobs ADD COLUMN gpus INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN quota_token TEXT;
ALTER TABLE counts ADD COLUMN gpus INTEGER NOT NULL DEFAULT 0;

UPDATE jobs SET gpus = coalesce((SELECT json_extract(shapes.key, '$[4]') FROM shapes WHERE shapes.id = jobs.shape), 0)
WHERE state IN ('queued', 'assigned', 'running');

UPDATE counts SET gpus = (
  SELECT coalesce(sum(jobs.gpus), 0) FROM jobs WHERE jobs.project = counts.project AND jobs.state = counts.state
)
WHERE state IN ('queued', 'assigned', 'running');

CREATE TABLE token_counts (
  token TEXT NOT NULL,
  state TEXT NOT NULL,
  n INTEGER NOT NULL,
  gpus INTEGER NOT NULL,
  PRIMARY KEY (token, state)
) STRICT, WITHOUT ROWID;
