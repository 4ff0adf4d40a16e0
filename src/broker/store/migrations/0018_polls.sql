-- A worker that is heard and does not ask for work is not counted on: until this instant of the listening time it is.
ALTER TABLE workers ADD COLUMN polls INTEGER NOT NULL DEFAULT 1 CHECK (polls IN (0, 1));
ALTER TABLE workers ADD COLUMN polls_until INTEGER;
