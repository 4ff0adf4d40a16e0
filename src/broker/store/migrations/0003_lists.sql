-- Every filter of a list finds its page without walking past the jobs that it does not want.
CREATE INDEX jobs_by_name ON jobs (name, id, state, project) WHERE name IS NOT NULL;
CREATE INDEX jobs_by_project_state ON jobs (project, state, id);
DROP INDEX jobs_by_array;
CREATE INDEX jobs_by_array ON jobs (array_id, array_index, state) WHERE array_id IS NOT NULL;
