"""Which devices a job is given: never more than is there, the fullest that fit, and numbers where there are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.matching import Machine, Shape, never, reasons, waiting
from broker.core.placement import MARGIN_MB, Demand, Held, Host, choose, impossible, short
from broker.wire.jobs import JobSpec
from broker.wire.machines import Cpus, Facts, Given, Gpu, GpuHealth, GpuProcess, GpuShare, GpuState, Ram

GIB = 1024


def process(mb: int | None, job: str | None = None, pid: int = 7) -> GpuProcess:
    return GpuProcess(pid=pid, mb=mb, job=job)


def gpu(index: int = 0, total_gb: float = 24, *processes: GpuProcess, **fields: object) -> Gpu:
    """A card of which the driver takes 400 MiB and these processes what they say."""
    total = int(total_gb * GIB)
    used = sum(one.mb or 0 for one in processes)
    known = {
        "uuid": f"GPU-{index}",
        "health": GpuHealth.OK,
        "total_mb": total,
        "free_mb": max(0, total - 400 - used),
        "driver_mb": 400,
        "processes": list(processes),
    }
    return Gpu.model_validate({"index": index, **known, **fields})


def host(*gpus: Gpu, held: dict[str, Given] | None = None, ram_gb: float | None = 64, **resources: int) -> Host:
    ram = Ram(total=ram_gb, available=ram_gb / 2) if ram_gb is not None else None
    facts = Facts(number=1, cpus=Cpus(logical=8, usable=8), ram_gb=ram, gpu_state=GpuState.OK, gpus=list(gpus))
    reserved = tuple(Held(name, what) for name, what in (held or {}).items())
    return Host("box", facts, tuple(resources.items()), reserved)


def wants(**fields: object) -> Demand:
    return Demand.of(JobSpec.model_validate({"command": "true", **fields}))


def share(index: int, gb: float | None) -> Given:
    return Given(gpus=[GpuShare(uuid=f"GPU-{index}", mb=None if gb is None else int(gb * GIB))])


def indexes(found: Given | None) -> list[int] | None:
    return None if found is None else [int(one.uuid[-1]) for one in found.gpus or ()]


def test_vram_alone_means_one_device_that_is_shared_and_gpus_alone_means_devices_for_itself() -> None:
    assert (wants(vram_gb=10).gpus, wants(vram_gb=10).vram_mb) == (1, 10 * GIB)
    assert (wants(gpus=2).gpus, wants(gpus=2).vram_mb) == (2, None)
    assert not wants()
    assert not wants(gpus=0)


@pytest.mark.trial("B44")
def test_a_device_without_memory_of_its_own_is_one_jobs_alone_whoever_draws_on_it() -> None:
    apple = gpu(unified=True, total_mb=None, free_mb=None, driver_mb=None, processes=None)

    assert indexes(choose(wants(gpus=1), host(apple))) == [0]
    assert choose(wants(gpus=1), host(apple, held={"1.1": share(0, None)})) is None
    assert choose(wants(vram_gb=1), host(apple)) is None


def test_what_is_reserved_and_not_used_yet_is_not_given_again() -> None:
    machine = host(gpu())
    for number in range(6):
        found = choose(wants(vram_gb=10), machine)
        if found is None:
            break
        machine = machine.with_(Held(f"{number}.1", found))
    assert len(machine.held) == 2


@pytest.mark.trial("B44")
def test_what_is_reserved_and_used_is_taken_off_once() -> None:
    card = gpu(0, 24, process(10 * GIB, "1.1"), process(10 * GIB, "2.1", pid=8))
    machine = host(card, held={"1.1": share(0, 10), "2.1": share(0, 10)})
    assert indexes(choose(wants(vram_gb=3), machine)) == [0]
    assert choose(wants(vram_gb=4), machine) is None


def test_foreign_memory_is_taken_off_once_and_is_not_the_jobs() -> None:
    assert indexes(choose(wants(vram_gb=13), host(gpu(0, 24, process(10 * GIB))))) == [0]
    assert choose(wants(vram_gb=14), host(gpu(0, 24, process(10 * GIB)))) is None
    reserved = host(gpu(0, 24, process(10 * GIB)), held={"1.1": share(0, 10)})  # 1.1 has not allocated yet
    assert choose(wants(vram_gb=4), reserved) is None


def test_a_job_that_takes_more_than_it_asked_for_leaves_what_is_left() -> None:
    machine = host(gpu(0, 24, process(20 * GIB, "1.1")), held={"1.1": share(0, 10)})
    assert choose(wants(vram_gb=4), machine) is None
    assert indexes(choose(wants(vram_gb=3), machine)) == [0]


def test_processes_that_together_have_more_than_is_used_make_no_room() -> None:
    garbled = gpu(0, 24, process(12 * GIB, "1.1"), process(12 * GIB, "1.1", pid=8), free_mb=20 * GIB)
    machine = host(garbled, held={"1.1": share(0, 20)})
    assert choose(wants(vram_gb=4), machine) is None
    assert indexes(choose(wants(vram_gb=3), machine)) == [0]


@pytest.mark.trial("B126")
def test_use_that_is_not_told_leaves_the_reservation_whole() -> None:
    card = gpu(0, 24, process(None, "1.1"), free_mb=14 * GIB)
    machine = host(card, held={"1.1": share(0, 10)})
    assert choose(wants(vram_gb=4), machine) is None
    assert indexes(choose(wants(vram_gb=3), machine)) == [0]


def test_a_device_for_itself_is_one_without_our_jobs_and_with_hardly_any_foreign_memory() -> None:
    assert indexes(choose(wants(gpus=1), host(gpu(0, 24, process(1000))))) == [0]
    assert choose(wants(gpus=1), host(gpu(0, 24, process(1100)))) is None
    assert choose(wants(gpus=1), host(gpu(), held={"1.1": share(0, 1)})) is None
    assert choose(wants(gpus=1), host(gpu(), held={"1.1": share(0, None)})) is None
    assert choose(wants(vram_gb=1), host(gpu(), held={"1.1": share(0, None)})) is None
    assert choose(wants(gpus=1), host(gpu(0, 24, free_mb=8 * GIB))) is None  # used by nobody who can be seen


def test_the_fullest_device_that_still_fits_is_given_and_the_smallest_to_a_job_that_shares_none() -> None:
    cards = (gpu(0, 80), gpu(1, 24), gpu(2, 24))
    assert indexes(choose(wants(vram_gb=4), host(*cards, held={"1.1": share(2, 10)}))) == [2]
    assert indexes(choose(wants(vram_gb=20), host(*cards, held={"1.1": share(2, 10)}))) == [1]
    assert indexes(choose(wants(gpus=1), host(*cards))) == [1]
    assert indexes(choose(wants(gpus=3), host(*cards))) == [1, 2, 0]


@pytest.mark.trial("B127")
def test_several_devices_are_given_on_one_host_all_or_none() -> None:
    machine = host(*(gpu(n) for n in range(4)), held={"1.1": share(0, None), "2.1": share(1, None)})
    assert choose(wants(gpus=3), machine) is None
    assert indexes(choose(wants(gpus=2), machine)) == [2, 3]
    assert [reason.code for reason in short(wants(gpus=3), machine)] == ["gpus_busy"]
    assert [reason.code for reason in impossible(wants(gpus=5), machine)] == ["gpus"]


@pytest.mark.parametrize("health", [health for health in GpuHealth if health is not GpuHealth.OK])
def test_a_device_in_trouble_is_never_given(health: GpuHealth) -> None:
    machine = host(gpu(0, 24, health=health))
    for demand in (wants(gpus=1), wants(vram_gb=1)):
        assert choose(demand, machine) is None
        assert [reason.code for reason in short(demand, machine)] == ["gpus_unusable"]


def test_another_workers_device_and_one_that_tells_nothing_are_never_given() -> None:
    facts = host(gpu()).facts
    assert choose(wants(gpus=1), Host("box", facts, others=frozenset({"GPU-0"}))) is None
    silent = gpu(0, 24, total_mb=None, free_mb=None, processes=None)
    assert choose(wants(gpus=1), host(silent)) is None
    assert choose(wants(vram_gb=1), host(silent)) is None


@pytest.mark.parametrize(
    ("wanted", "machine", "code", "need", "have"),
    [
        ({"vram_gb": 40}, host(gpu()), "vram", 40, 23.1),
        ({"gpus": 2}, host(gpu()), "gpus", 2, 1),
        ({"gpus": 2, "vram_gb": 40}, host(gpu(0, 80), gpu(1, 24)), "vram", 40, 23.1),
        ({"vram_gb": 10}, host(gpu(), held={"1.1": share(0, 20)}), "gpus_busy", 10, 3.1),
        ({"vram_gb": 10}, host(gpu(0, 24, process(20 * GIB))), "gpus_busy", 10, 3.1),
        ({"gpus": 1}, host(gpu(), held={"1.1": share(0, 20)}), "gpus_busy", 1, 0),
        ({"ram_gb": 100}, host(), "ram", 100, 31),
        ({"ram_gb": 1}, host(ram_gb=None), "ram", 1, None),
        ({"ram_gb": 40}, host(held={"1.1": Given(ram_gb=30)}), "ram_busy", 40, 31),
        ({"resources": {"license": 3}}, host(license=2), "resources", 3, 2),
        ({"resources": {"license": 1}}, host(), "resources", 1, 0),
        (
            {"resources": {"license": 2}},
            host(held={"1.1": Given(resources={"license": 1})}, license=2),
            "resources_busy",
            2,
            1,
        ),
    ],
)
def test_what_is_short_is_said_with_numbers(
    wanted: dict[str, object], machine: Host, code: str, need: float, have: float | None
) -> None:
    found = short(wants(**wanted), machine)
    assert [(reason.code, reason.need, reason.have) for reason in found] == [(code, need, have)]
    assert choose(wants(**wanted), machine) is None


def test_all_that_is_short_is_said_and_names_who_has_it() -> None:
    machine = host(gpu(0, 24, process(6 * GIB)), held={"1.1": share(0, 10), "2.1": Given(ram_gb=60)})
    found = short(wants(vram_gb=12, ram_gb=8), machine)
    assert [reason.code for reason in found] == ["gpus_busy", "ram_busy"]
    assert found[0].message == (
        "needs 1 GPU with 12 GiB, box has none free now: GPU 0: 7.1 of 24 GiB free, 10 reserved by 1.1, 6 used by others"
    )


def shape(**fields: object) -> Shape:
    return Shape.of(JobSpec.model_validate({"command": "true", **fields}))


def test_what_is_asked_for_is_part_of_a_shape_and_who_asks_for_nothing_has_the_key_of_before() -> None:
    assert shape(gpus=0).key() == shape().key() == '[1,[],null,"default"]'
    full = shape(vram_gb=10, ram_gb=2, resources={"b": 1, "a": 2}, os="linux", arch="amd64")
    assert Shape.from_key(full.key()) == full
    assert full.arch == "x86_64"
    assert shape(gpus=1).key() == shape(gpus=1, vram_gb=None).key() != shape(gpus=1, vram_gb=1).key()


@pytest.mark.parametrize(
    ("wanted", "platform", "codes"),
    [
        ({"os": "linux", "arch": "amd64"}, "linux-x86_64", []),
        ({"os": "macos", "arch": "aarch64"}, "darwin-arm64", []),
        ({"os": "macos"}, "linux-x86_64", ["os"]),
        ({"arch": "arm64"}, "linux-x86_64", ["arch"]),
        ({"os": "linux", "arch": "arm64"}, None, ["os", "arch"]),
        ({"gpus": 1}, "linux-x86_64", ["gpus"]),
    ],
)
def test_another_platform_and_no_gpu_are_reasons_without_a_look_at_the_machine(
    wanted: dict[str, object], platform: str | None, codes: list[str]
) -> None:
    machine = Machine("box", True, 4, 4, frozenset(), platform=platform)
    assert [reason.code for reason in never(shape(**wanted), machine)] == codes


def test_why_a_job_waits_prefers_what_is_not_cpus() -> None:
    full = Machine("full", online=True, slots=4, free=0, tags=frozenset(), gpus=1, host=host(gpu()))
    taken = host(gpu(), held={"1.1": share(0, None)})
    busy = Machine("busy", online=True, slots=4, free=4, tags=frozenset(), gpus=1, host=taken)
    found = waiting(shape(gpus=1), [full, busy], [])
    assert found.code == "gpus_busy"
    assert "GPU 0 is 1.1's alone" in found.message
    assert [reason.code for reason in reasons(shape(gpus=1), full)] == ["busy"]


sizes = st.integers(0, 30 * GIB)
processes = st.lists(
    st.builds(process, st.none() | sizes, st.none() | st.sampled_from([f"{n}.1" for n in range(9)])), max_size=4
)
demands = st.builds(
    Demand,
    st.integers(0, 3),
    st.none() | st.integers(1, 30 * GIB),
    st.sampled_from([0.0, 1.0, 30.0]),
    st.sampled_from([(), (("license", 1),), (("license", 2),)]),
)


@st.composite
def cards(draw: st.DrawFn) -> list[Gpu]:
    """What a driver may say, also where it makes no sense."""
    found = []
    for index in range(draw(st.integers(0, 3))):
        total = draw(st.sampled_from([8, 24, 80])) * GIB
        fields = {"free_mb": draw(st.none() | st.integers(0, total)), "total_mb": total}
        fields["health"] = draw(st.sampled_from([GpuHealth.OK, GpuHealth.OK, GpuHealth.OK, GpuHealth.LOST]))
        found.append(gpu(index, 24, **fields, processes=draw(st.none() | processes)))
    return found


@pytest.mark.guarantee("G31")
@given(looks=st.lists(cards(), min_size=1, max_size=3), asked=st.lists(demands, max_size=12))
def test_whatever_is_asked_and_told_what_is_reserved_never_exceeds_what_is_there(
    looks: list[list[Gpu]], asked: list[Demand]
) -> None:
    held: tuple[Held, ...] = ()
    for number, demand in enumerate(asked):
        told = host(*looks[number % len(looks)], license=2).facts
        machine = Host("box", told, (("license", 2),), held)
        found = choose(demand, machine)
        assert (found is None) == bool(short(demand, machine))
        if found is None:
            continue
        assert len({one.uuid for one in found.gpus or ()}) == demand.gpus
        before = {device.gpu.uuid: device for device in machine.devices}
        for one in found.gpus or ():
            device = before[one.uuid]
            assert device.gpu.health is GpuHealth.OK
            assert not device.exclusive
            if one.mb is None:
                assert not device.shares
            else:
                assert device.gpu.total_mb is not None
                assert device.reserved_mb + one.mb + MARGIN_MB <= device.gpu.total_mb
                assert device.gpu.free_mb is not None and one.mb + MARGIN_MB <= device.gpu.free_mb
        held = (*held, Held(f"{number}.1", found))
    total = Host("box", None, (("license", 2),), held)
    assert total.ram_reserved_gb <= 64
    assert total.used("license") <= 2


@pytest.mark.trial("B127")
def test_of_several_devices_none_is_a_part_of_a_card_since_a_program_sees_only_one_such() -> None:
    parts = [gpu(n, 10, parent="GPU-9") for n in (0, 1)]

    assert indexes(choose(wants(gpus=1), host(*parts))) == [0]
    assert indexes(choose(wants(gpus=2), host(*parts, gpu(2), gpu(3)))) == [2, 3]
    for asked in (wants(gpus=2), wants(gpus=2, vram_gb=4)):
        [why] = impossible(asked, host(*parts, gpu(2)))
        assert (why.code, why.need, why.have) == ("gpus", 2, 1)
        assert why.message.endswith("box has 1 besides MIG instances, of which a program sees only one")
