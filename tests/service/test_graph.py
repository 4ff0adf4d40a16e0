"""Who waits for whom, as one answer of bounded size."""

from __future__ import annotations

import pytest

from broker.service import graph
from broker.wire.jobs import CancelRequest, Graph
from broker.wire.problems import ProblemCode, Refused
from jobd_mcp.cli.graph import dot, tree


def pairs(found: Graph) -> list[tuple[int, int]]:
    return [(edge.parent, edge.child) for edge in found.edges]


async def test_all_that_a_job_waits_for_and_that_waits_for_it_and_no_others(bench) -> None:
    a, aside = await bench.submit(name="a"), await bench.submit()
    b = await bench.submit(name="b", depends_on=[a, aside])
    c = await bench.submit(depends_on=[b], dependency_policy="any_exit")
    await bench.submit(depends_on=[a])

    found = await bench.client.job_graph(b)

    assert pairs(found) == [(a, b), (aside, b), (b, c)]
    assert [(node.id, node.name, node.state.value) for node in found.nodes][:2] == [
        (a, "a", "queued"),
        (aside, None, "queued"),
    ]
    assert found.cut is None


async def test_an_array_is_one_node_whatever_its_members_wait_for(bench) -> None:
    first = await bench.submit(count=3)
    second = await bench.submit(count=3, depends_on_each=[first])
    last = await bench.submit(depends_on_array=[second])

    found = await bench.client.job_graph(second + 1)

    assert pairs(found) == [(first, second), (second, last)]
    assert [node.count for node in found.nodes] == [3, 3, None]


async def test_of_a_project_its_jobs_that_wait_and_what_they_wait_for(bench) -> None:
    parent = await bench.submit()
    child = await bench.submit(project="p", depends_on=[parent])
    await bench.submit(project="p")

    found = await bench.client.job_graph(project="p")

    assert ([node.id for node in found.nodes], pairs(found)) == ([parent, child], [(parent, child)])


async def test_a_large_one_is_cut_and_says_so(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MOST_NODES", 3)
    jobs = [await bench.submit()]
    for _ in range(5):
        jobs.append(await bench.submit(depends_on=[jobs[-1]]))

    found = await bench.client.job_graph(jobs[0])

    assert (len(found.nodes), len(found.edges), found.cut) == (3, 2, True)


async def test_a_parent_that_was_removed_is_said_to_be(make_bench) -> None:
    bench = await make_bench(keep_jobs_s=50, keep_logs_s=10)
    parent = await bench.submit()
    child = await bench.submit(depends_on=[parent], dependency_policy="any_exit")
    await bench.client.job_cancel(CancelRequest(job=[parent]))
    bench.clock.pass_s(40)
    await bench.client.job_cancel(CancelRequest(job=[child]))
    await bench.sweep(after_s=20)
    await bench.sweep()

    found = await bench.client.job_graph(child)

    assert [(node.id, node.state) for node in found.nodes] == [(parent, None), (child, "cancelled")]


@pytest.mark.parametrize("which", [{}, {"job": 1, "project": "p"}])
async def test_one_job_or_one_project_is_asked_for(bench, which: dict[str, object]) -> None:
    with pytest.raises(Refused) as caught:
        await bench.client.job_graph(**which)
    assert (caught.value.code, caught.value.field) == (ProblemCode.INVALID_REQUEST, "job")
    with pytest.raises(Refused):
        await bench.client.job_graph(99)


def test_the_tree_has_each_job_once_and_names_what_else_it_waits_for() -> None:
    nodes = [{"id": n, "state": "queued", "name": f"j{n}"} for n in (1, 2, 3, 4)] + [{"id": 5}]
    edges = [
        {"parent": parent, "child": child, "policy": policy}
        for parent, child, policy in ((1, 2, "success"), (1, 3, "any_exit"), (2, 4, "success"), (3, 4, "success"))
    ]
    answer = {"nodes": nodes, "edges": edges, "cut": True}

    assert list(tree(answer)) == [
        "1 j1 queued",
        "├─ 2 j2 queued",
        "│  └─ 4 j4 queued (also after 3)",
        "└─ 3 j3 queued (any exit)",
        "5 (removed)",
        "… and more; ask for one of these jobs",
    ]
    lines = list(dot(answer))
    assert '  1 [label="1 j1 queued"];' in lines
    assert '  1 -> 3 [label="any_exit"];' in lines
    assert list(tree({"nodes": [], "edges": []})) == ["No job waits for another."]
