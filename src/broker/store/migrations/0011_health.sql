-- What a delivery has used, and how often it said that a checkpoint is safe.
ALTER TABLE assignments ADD COLUMN peak TEXT;
ALTER TABLE assignments ADD COLUMN checkpoints INTEGER NOT NULL DEFAULT 0;
ALTER TABLE assignments ADD COLUMN checkpoint_at INTEGER;

-- Starts that failed on a worker since the last that did not, and why the broker cordoned it by itself.
ALTER TABLE workers ADD COLUMN launch_failures TEXT NOT NULL DEFAULT '[]';
ALTER TABLE workers ADD COLUMN duty_why TEXT;

-- Since when memory of which device is held by nobody.
ALTER TABLE facts ADD COLUMN held TEXT NOT NULL DEFAULT '{}';
