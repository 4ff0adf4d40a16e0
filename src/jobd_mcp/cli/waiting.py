"""Waiting for jobs in a terminal: as long as it takes, in calls that each end by themselves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from jobd_mcp.cli.connection import Answer, Connection
from jobd_mcp.cli.exit_codes import TIME_LIMIT, exit_code, first_bad, needs_detail
from jobd_mcp.cli.failure import Failure
from jobd_mcp.cli.server_events import PATIENCE_S
from jobd_mcp.operations import Operation
from jobd_mcp.schemas import Json, Schema, as_list, as_object

ONE_CALL_S = 30.0
BLOCK = 50  # how many ends one answer tells
_MARGIN_S = 30.0
_PAUSE_S = 0.2
BAD_ENDS = ("failed", "cancelled", "preempted", "orphaned", "scheduling_timeout")


@dataclass(frozen=True)
class Waiter:
    """Waits with `job_wait`, and asks `job_get` and `job_list` for what its answer leaves out."""

    connection: Connection
    job_wait: Operation
    job_get: Operation
    job_list: Operation

    def wait(self, arguments: Schema, limit_s: float | None = None) -> Answer:
        """The last answer: of jobs that have ended, or of what `limit_s` allowed.

        A broker that answered once may be away for a while: restarts end no wait.
        """
        deadline = None if limit_s is None else time.monotonic() + limit_s
        answer = self._ask(arguments, 0.0)
        while as_object(answer.json()).get("done") is not True and (deadline is None or time.monotonic() < deadline):
            left_s = ONE_CALL_S if deadline is None else min(ONE_CALL_S, max(0.0, deadline - time.monotonic()))
            answer = self._ask_patiently(arguments, left_s)
        return answer

    def exit_code(self, arguments: Schema, answer: Json) -> int:
        """Of the jobs that were waited for: the first bad one. 124 if they have not ended."""
        if as_object(answer).get("done") is not True:
            return TIME_LIMIT
        return first_bad(self._code(ended) for ended in self._ends(arguments, answer))

    def _ends(self, arguments: Schema, answer: Json) -> Iterator[Schema]:
        """Every end, in the order asked for; an answer tells no more than a block of them."""
        ids, array = as_list(arguments.get("job")), arguments.get("array")
        if arguments.get("mode") != "any" and len(ids) > BLOCK:
            for start in range(0, len(ids), BLOCK):
                part = self._ask({"job": ids[start : start + BLOCK]}, 0.0).json()
                yield from map(as_object, as_list(as_object(part).get("jobs")))
        elif arguments.get("mode") != "any" and array is not None:
            yield from self._bad_ends(array)
        else:
            yield from map(as_object, as_list(as_object(answer).get("jobs")))

    def _bad_ends(self, array: Json) -> list[Schema]:
        """The members of an array that did not complete, by id."""
        found: list[Schema] = []
        for state in BAD_ENDS:
            cursor: Json = None
            while True:
                arguments: Schema = {"array": array, "state": state, "cursor": cursor}
                page = as_object(self.connection.call(self.job_list, arguments).json())
                found += [as_object(job) for job in as_list(page.get("jobs"))]
                cursor = page.get("next_cursor")
                if cursor is None:
                    break
        return sorted(found, key=lambda job: str(job.get("id")).zfill(20))

    def _code(self, ended: Schema) -> int:
        if needs_detail(ended):
            ended = as_object(self.connection.call(self.job_get, {"job": ended["id"], "detail": "full"}).json())
        return exit_code(ended)

    def _ask_patiently(self, arguments: Schema, wait_s: float) -> Answer:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._ask(arguments, wait_s)
            except Failure as failure:
                refused = failure.code is not None and not failure.retryable
                if refused or time.monotonic() > until:
                    raise
            time.sleep(_PAUSE_S)

    def _ask(self, arguments: Schema, wait_s: float) -> Answer:
        return self.connection.call(self.job_wait, {**arguments, "timeout_s": wait_s}, wait_s + _MARGIN_S)
