-- name: project_changes
-- All changes that count over the file.
SELECT project, field, value, actor, changed_at FROM project_changes ORDER BY project, field;

-- name: change_project
-- From now on this counts; a later word replaces an earlier one.
INSERT INTO project_changes (project, field, value, actor, changed_at)
VALUES (:project, :field, :value, :actor, :now)
ON CONFLICT (project, field) DO UPDATE SET value = excluded.value, actor = excluded.actor, changed_at = excluded.changed_at;

-- name: take_change_back
-- The file's word counts again.
DELETE FROM project_changes WHERE project = :project AND field = :field;

-- name: projects_with_jobs
-- Projects of which some job has not ended.
SELECT DISTINCT project FROM counts WHERE state IN ('queued', 'assigned', 'running') AND n > 0 ORDER BY project;
