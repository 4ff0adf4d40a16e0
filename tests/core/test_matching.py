"""Does a worker fit? Reasons, never a bare no; and one sentence for why a job waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.matching import Machine, Shape, could, fits, never, reasons, waiting
from broker.core.placement import Host
from broker.wire.jobs import JobSpec, Reason
from broker.wire.machines import Cpus, Facts, GpuState, Ram
from broker.wire.workers import WorkerState


def machine(
    name: str = "box", *, online: bool = True, slots: float = 4, free: float = 4, tags: tuple[str, ...] = ()
) -> Machine:
    return Machine(name, online, slots, free, frozenset(tags))


def shape(**fields: object) -> Shape:
    return Shape.of(JobSpec.model_validate({"command": "true", **fields}))


def test_no_reasons_means_that_it_fits() -> None:
    assert reasons(shape(cpus=4, needs=["cuda"]), machine(tags=("cuda", "python"))) == []


@pytest.mark.parametrize(
    ("wanted", "offered", "code"),
    [
        ({"worker": "other"}, machine(), "worker"),
        ({"needs": ["cuda"]}, machine(), "tags"),
        ({"cpus": 5}, machine(), "cpus"),
        ({}, machine(online=False), "offline"),
        ({"cpus": 2}, machine(free=1.5), "busy"),
    ],
)
def test_each_thing_that_does_not_fit_has_its_own_code(wanted: dict[str, object], offered: Machine, code: str) -> None:
    assert [reason.code for reason in reasons(shape(**wanted), offered)] == [code]


WANTED = st.fixed_dictionaries(
    {
        "cpus": st.sampled_from([1, 2, 4, 8]),
        "needs": st.lists(st.sampled_from(["cuda", "python", "r"]), unique=True),
        "worker": st.sampled_from([None, "box", "other"]),
        "os": st.sampled_from([None, "linux", "macos"]),
        "arch": st.sampled_from([None, "x86_64", "arm64"]),
        "gpus": st.sampled_from([None, 1]),
        "ram_gb": st.sampled_from([None, 4, 40]),
    }
)
LITTLE_RAM = Facts(
    number=1, cpus=Cpus(logical=4, usable=4), ram_gb=Ram(total=8, available=8), gpu_state=GpuState.ABSENT
)
OFFERED = st.builds(
    Machine,
    name=st.just("box"),
    online=st.booleans(),
    slots=st.sampled_from([2.0, 4.0]),
    free=st.sampled_from([0.0, 1.0, 2.0]),
    tags=st.frozensets(st.sampled_from(["cuda", "python"])),
    closed=st.sampled_from([None, WorkerState.CORDONED]),
    platform=st.sampled_from([None, "linux-x86_64", "darwin-arm64"]),
    gpus=st.sampled_from([0, 1]),
    host=st.sampled_from([None, Host("box", None), Host("box", LITTLE_RAM)]),
)


@given(WANTED, OFFERED)
def test_the_short_answer_is_that_of_the_long_one(wanted: dict[str, object], offered: Machine) -> None:
    asked = shape(**wanted)

    assert fits(asked, offered) is (reasons(asked, offered) == [])
    assert could(asked, offered) is (never(asked, offered) == [])


def test_all_that_fails_is_said_not_only_the_first() -> None:
    found = reasons(shape(worker="a", needs=["x", "y"], cpus=9), machine("b"))

    assert [reason.code for reason in found] == ["worker", "tags", "cpus"]


def test_equal_requirements_share_a_shape_whatever_else_differs() -> None:
    one = shape(cwd="/a", env={"A": "1"}, name="n", needs=["x", "y", "x"], priority=3)
    other = shape(cwd="/b", labels={"k": "v"}, needs=["y", "x"])

    assert one.key() == other.key()
    assert Shape.from_key(one.key()) == one
    assert shape(project="p").key() != one.key()


@pytest.mark.parametrize(
    ("wanted", "machines", "refused", "code"),
    [
        ({}, [], [], "no_worker"),
        ({"cpus": 9}, [machine()], [], "no_worker_fits"),
        ({}, [machine(online=False)], [], "workers_offline"),
        ({}, [machine(free=0)], [], "capacity"),
        ({}, [machine()], [("box", Reason(code="cwd_missing", message="/data is not there"))], "cwd_missing"),
        (
            {},
            [machine(), machine("two", free=0)],
            [("box", Reason(code="cwd_missing", message="no /data"))],
            "capacity",
        ),
        ({}, [machine()], [], "dispatching"),
    ],
)
@pytest.mark.guarantee("G16")
def test_why_a_job_waits(
    wanted: dict[str, object], machines: list[Machine], refused: list[tuple[str, Reason]], code: str
) -> None:
    found = waiting(shape(**wanted), machines, refused)

    assert found.code == code
    assert found.message


def test_a_refused_directory_names_the_hosts() -> None:
    refused = [
        ("a", Reason(code="cwd_missing", message="/data is not there")),
        ("b", Reason(code="cwd_missing", message="x")),
    ]

    assert "a, b" in waiting(shape(), [machine("a"), machine("b")], refused).message
