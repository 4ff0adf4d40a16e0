-- What an assignment was given besides cpus: devices with memory, RAM, counted things. Free when `reserved` is.
ALTER TABLE assignments ADD COLUMN given TEXT;
CREATE INDEX assignments_given ON assignments (worker) WHERE reserved = 1 AND given IS NOT NULL;

-- How many devices a worker shows, so that one without costs no look at its facts; and what it has a number of.
ALTER TABLE workers ADD COLUMN gpus INTEGER NOT NULL DEFAULT 0;
ALTER TABLE workers ADD COLUMN resources TEXT NOT NULL DEFAULT '{}';
UPDATE workers SET gpus = (
  SELECT json_array_length(facts.json, '$.gpus') FROM facts WHERE facts.worker = workers.id
) WHERE EXISTS (SELECT 1 FROM facts WHERE facts.worker = workers.id AND json_array_length(facts.json, '$.gpus') > 0);
