"""What a submit leaves open is decided here: the project of its directory, its profile, and each value."""

from __future__ import annotations

import os

import anyio.to_thread

from broker.core.effective import Effective, Source, effective
from broker.core.profiles import choice, project_of
from broker.service.context import Broker
from broker.wire.jobs import JobSpec


async def completed(broker: Broker, spec: JobSpec) -> Effective:
    """Raises Refused for an unknown profile, and for words that contradict each other."""
    if _asks_for_its_root(broker, spec):  # a network file system may take its time to answer
        return await anyio.to_thread.run_sync(complete, broker, spec)
    return complete(broker, spec)


def complete(broker: Broker, spec: JobSpec) -> Effective:
    """The same, in a thread: it may look at directories."""
    settings = broker.settings
    source = Source.JOB
    if _asks_for_its_root(broker, spec):
        # Neither the words nor `..` say where a directory is: links are followed, as this machine sees them.
        project = project_of(os.path.realpath(spec.cwd or "/"), broker.configuration.roots)
        if project is not None:
            spec, source = spec.model_copy(update={"project": project}), Source.ROOT
    chosen = choice(spec, settings.projects, settings.profiles, settings.rules)
    return effective(spec, settings.projects, chosen.profile, project_source=source, suggested=chosen.suggested)


def _asks_for_its_root(broker: Broker, spec: JobSpec) -> bool:
    if "project" in spec.model_fields_set or not broker.configuration.roots:
        return False
    return spec.cwd is not None and os.path.isabs(spec.cwd)
