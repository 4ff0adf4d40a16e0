-- Which deliveries a worker understands. Those that are known from before understand the first ones only.
ALTER TABLE workers ADD COLUMN protocol INTEGER NOT NULL DEFAULT 1;
