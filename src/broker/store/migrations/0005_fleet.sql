-- What an operator wants of a worker, and whether the worker itself takes new work.
ALTER TABLE workers ADD COLUMN duty TEXT NOT NULL DEFAULT 'serving'
  CHECK (duty IN ('serving', 'cordoned', 'draining', 'drained'));
ALTER TABLE workers ADD COLUMN accepts INTEGER NOT NULL DEFAULT 1 CHECK (accepts IN (0, 1));

-- Tags that an operator gave it, besides its own.
ALTER TABLE workers ADD COLUMN given_tags TEXT NOT NULL DEFAULT '[]';
