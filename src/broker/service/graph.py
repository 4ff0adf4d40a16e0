"""Who waits for whom, as one answer of bounded size. An array is one node: what its members wait for is joined."""

from __future__ import annotations

from collections.abc import Iterable

from broker.core.arrays import aggregate
from broker.service import array_counts
from broker.service.context import Broker
from broker.service.rows import unknown_job
from broker.store.contract import Row, Tx
from broker.wire.jobs import Graph, GraphEdge, GraphNode
from broker.wire.problems import ProblemCode, Refused
from broker.wire.states import DependencyPolicy, JobState

MOST_NODES = 500
AMONG_JOBS = 10_000
"""So many of a project's newest jobs are looked at."""


async def graph(broker: Broker, job: int | None, project: str | None) -> Graph:
    """All that a job waits for and that waits for it, however far; or what waits in a project, and for what.

    Refused: `unknown_job`; both, or neither, were given.
    """
    if job is not None and project is None:
        return await broker.store.read(lambda tx: _around(tx, job))
    if project is not None and job is None:
        return await broker.store.read(lambda tx: _of_project(tx, project))
    raise Refused(ProblemCode.INVALID_REQUEST, "give job or project", field="job", hint="one of them")


class _Found:
    """The part that was found so far."""

    def __init__(self) -> None:
        self.nodes: set[int] = set()
        self.edges: set[tuple[int, int, str]] = set()
        self.cut = False

    def admits(self, node: int) -> bool:
        if node not in self.nodes and len(self.nodes) >= MOST_NODES:
            self.cut = True
            return False
        self.nodes.add(node)
        return True

    def up(self, tx: Tx, node: int) -> list[int]:
        rows = self._some(tx.all("edges_up", node=node, limit=MOST_NODES + 1))
        return [row["node"] for row in rows if self._joins(row["node"], node, row["policy"], row["node"])]

    def down(self, tx: Tx, node: int) -> list[int]:
        rows = self._some(tx.all("edges_down", node=node, limit=MOST_NODES + 1))
        return [row["node"] for row in rows if self._joins(node, row["node"], row["policy"], row["node"])]

    def _some(self, rows: list[Row]) -> list[Row]:
        self.cut = self.cut or len(rows) > MOST_NODES
        return rows[:MOST_NODES]

    def _joins(self, parent: int, child: int, policy: str, new: int) -> bool:
        """Whether `new` is seen for the first time."""
        known = new in self.nodes
        if not self.admits(new):
            return False
        self.edges.add((parent, child, policy))
        return not known


def _around(tx: Tx, job: int) -> Graph:
    row = tx.one("node_of_job", job=job)
    if row is None:
        raise unknown_job(tx, job)
    found = _Found()
    found.admits(row["node"])
    for step in (found.up, found.down):
        left = [row["node"]]
        while left:
            left += step(tx, left.pop())
    return _shown(tx, found)


def _of_project(tx: Tx, project: str) -> Graph:
    found = _Found()
    rows = tx.all("nodes_of_project", project=project, among=AMONG_JOBS, limit=MOST_NODES + 1)
    starts = [row["node"] for row in rows if found.admits(row["node"])]
    for node in starts:
        found.up(tx, node)
    return _shown(tx, found)


def _shown(tx: Tx, found: _Found) -> Graph:
    return Graph(nodes=list(_nodes(tx, sorted(found.nodes))), edges=_edges(found), cut=found.cut or None)


def _edges(found: _Found) -> list[GraphEdge]:
    return [
        GraphEdge(parent=parent, child=child, policy=DependencyPolicy(policy))
        for parent, child, policy in sorted(found.edges)
    ]


def _nodes(tx: Tx, nodes: Iterable[int]) -> Iterable[GraphNode]:
    for node in nodes:
        if (array := tx.one("array", array=node)) is not None:
            state = aggregate(array_counts.counts(tx, node))
            name, command = array["name"], array["command"]
            yield GraphNode(id=node, state=state, name=name, command=command, count=array["size"])
        elif (job := tx.one("node", node=node)) is not None:
            yield GraphNode(id=node, state=JobState(job["state"]), name=job["name"], command=job["command"])
        else:
            yield GraphNode(id=node)
