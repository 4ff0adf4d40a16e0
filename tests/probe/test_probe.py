"""The child that talks to the driver, and what is made of its words, without a broker."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.wire.machines import Gpu, GpuHealth, GpuState
from support.gpu_scenarios import H100, RTX, A, B
from support.hardware import Hardware
from support.waiting import eventually
from worker.probe.devices import Devices, Tree
from worker.probe.gpus import GpuProbe, Patience
from worker.probe.nvml import clean
from worker.probe.snapshot import Device, Snapshot

QUICK = Patience(answer_s=5, kill_s=5, first_pause_s=0, longest_pause_s=0, absent_pause_s=0)


@pytest.fixture
async def make_probe() -> AsyncIterator[Callable[..., GpuProbe]]:
    made: list[GpuProbe] = []

    def make(environ: dict[str, str], patience: Patience = QUICK, **options: object) -> GpuProbe:
        made.append(GpuProbe({"PATH": os.environ["PATH"], **environ}, patience, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for probe in made:
        await probe.aclose()


def devices(snapshot: Snapshot, trees: tuple[Tree, ...] = ()) -> list[Gpu]:
    return Devices().found(snapshot, trees, 0).gpus


async def test_without_a_library_there_is_no_gpu_and_nothing_stays(make_probe, tmp_path: Path) -> None:
    probe = make_probe({"LD_LIBRARY_PATH": str(tmp_path)})
    found = await probe.look()
    if found["state"] != "absent":
        pytest.skip("this machine has an NVIDIA driver of its own")
    assert found["why"] == "no NVIDIA driver: libnvidia-ml.so.1 is not on this machine"
    assert probe.pid is None


async def test_a_library_that_is_none_is_told_from_one_that_is_absent(make_probe, tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    found = await make_probe({"LD_LIBRARY_PATH": str(tmp_path)}).look()
    assert found["state"] == "failed"
    assert found["why"].startswith("libnvidia-ml.so.1 can't be loaded: ")


async def test_nvidia_ml_py_is_loaded_only_where_there_is_a_library(
    make_probe, hardware: Hardware, tmp_path: Path
) -> None:
    """An interpreter that says what it has imported, in the child's place."""
    program = tmp_path / "spy.py"
    child = Path(sys.modules["worker.probe.gpus"].__file__ or "").with_name("child.py")
    program.write_text(
        f"import os, runpy, sys\n"
        f"leave = os._exit\n"
        f"os._exit = lambda code: (open({str(tmp_path / 'said')!r}, 'a').write(f\"{{'pynvml' in sys.modules}}\\n\"), leave(code))\n"
        f"runpy.run_path({str(child)!r}, run_name='__main__')\n"
    )
    hardware.is_now("count 0")
    for environ in ({"LD_LIBRARY_PATH": str(tmp_path)}, hardware.environ):
        await make_probe(environ, command=(sys.executable, str(program))).look()
    said = (tmp_path / "said").read_text().split()
    assert said[1] == "True"
    if not Path("/proc/driver/nvidia").exists():
        assert said[0] == "False"


async def test_without_nvidia_ml_py_the_extra_is_named(make_probe, hardware: Hardware, tmp_path: Path) -> None:
    hardware.is_now(RTX)
    child = Path(sys.modules["worker.probe.gpus"].__file__ or "").with_name("child.py")
    program = tmp_path / "without.py"
    program.write_text(
        f"import runpy, sys\nsys.modules['pynvml'] = None\nrunpy.run_path({str(child)!r}, run_name='__main__')\n"
    )
    found = await make_probe(hardware.environ, command=(sys.executable, str(program))).look()
    assert found["state"] == "failed"
    assert "install jobd-mcp[gpu]" in found["why"]


async def test_one_child_answers_again_and_again(make_probe, hardware: Hardware) -> None:
    hardware.is_now(RTX)
    probe = make_probe(hardware.environ)
    await probe.look()
    first = probe.pid
    hardware.is_now(f"{RTX}\n{H100}")
    assert [gpu.uuid for gpu in devices(await probe.look())] == [A, B]
    assert probe.pid == first is not None


@pytest.mark.parametrize("call", ["Init", "DeviceGetCount", "DeviceGetUUID", "DeviceGetComputeRunningProcesses"])
async def test_a_hang_is_cut_off_wherever_it_is(make_probe, hardware: Hardware, call: str) -> None:
    hardware.is_now(f"{RTX}\nhang {call} 600")
    probe = make_probe(hardware.environ, Patience(2, 5, 0, 0, 0))
    found = await probe.look()
    assert found["state"] == "failed"
    assert found["why"] == "the NVIDIA driver hangs: no answer within 2 s"
    assert probe.pid is None
    hardware.is_now(RTX)

    async def recovered() -> bool:
        return (await probe.look())["state"] == "ok"

    await eventually(recovered, within_s=30)


async def test_of_a_child_that_cannot_be_killed_there_is_never_a_second(make_probe, hardware: Hardware) -> None:
    """Without patience for its end, it is as one that is stuck in the kernel."""
    starts = hardware.file.with_name("starts")
    program = hardware.file.with_name("stuck.py")
    program.write_text(f"import time\nopen({str(starts)!r}, 'a').write('x')\ntime.sleep(600)\n")
    probe = make_probe({}, Patience(1, 0, 0, 0, 0), command=(sys.executable, str(program)))
    while not starts.exists():
        await probe.look()
    stuck = probe._stuck
    assert stuck is not None
    before = len(starts.read_text())
    # As long as it has not been seen to end, the same answer comes and nothing is started.
    while probe._stuck is not None and stuck.returncode is None:
        assert (await probe.look())["state"] == "failed"
        assert len(starts.read_text()) == before
        await asyncio.sleep(0)


async def test_pauses_between_starts_grow_and_an_answer_ends_them(make_probe, hardware: Hardware) -> None:
    now = [0.0]
    hardware.is_now(f"{RTX}\nfail Init 18")
    probe = make_probe(hardware.environ, Patience(20, 5, 10, 40, 600), clock=lambda: now[0])
    starts = []
    for _ in range(200):
        found = await probe.look()
        if probe._not_before not in starts:
            starts.append(probe._not_before)
        now[0] += 1
    assert [after - before for before, after in pairwise(starts)][:4] == [20, 40, 40, 40]
    hardware.is_now(RTX)
    now[0] += 1000
    assert (await probe.look())["state"] == "ok"
    assert probe._failures == 0
    assert found["state"] == "failed"


@pytest.mark.guarantee("G30")
@pytest.mark.parametrize("call", ["DeviceGetHandleByIndex", "DeviceGetUUID", "DeviceGetName", "DeviceGetMemoryInfo"])
async def test_an_error_of_one_device_is_that_devices_alone(make_probe, hardware: Hardware, call: str) -> None:
    for code in (4, 13, 15, 16, 999):
        hardware.is_now(f"{RTX}\n{H100}\nfail {call} {code} 0")
        first, second = devices(await make_probe(hardware.environ).look())
        assert (second.uuid, second.health, second.why) == (B, GpuHealth.OK, None)
        assert f"NVML {code}" in (first.why or "")


async def test_memory_of_a_process_that_computes_and_draws_is_counted_once(make_probe, hardware: Hardware) -> None:
    hardware.is_now(f"{RTX}\nprocess 0 {os.getpid()} 4096 both\nused 0 8192")
    [gpu] = devices(await make_probe(hardware.environ).look())
    assert [process.mb for process in gpu.processes or ()] == [4096]
    assert (gpu.free_mb, gpu.unseen_mb) == (24576 - 400 - 4096 - 8192, 8192)


async def test_memory_that_a_process_may_have_is_nobodys_fault(make_probe, hardware: Hardware) -> None:
    """Where the driver does not say how much a process has, the rest can't be told from what nobody owns."""
    hardware.is_now(f"{RTX}\nprocess 0 {os.getpid()} NA compute\nused 0 8192")
    snapshot = await make_probe(hardware.environ).look()
    memory = Devices(held_s=0)
    for now_s in range(3):
        [gpu] = memory.found(snapshot, (), now_s).gpus
        assert (gpu.health, gpu.unseen_mb) == (GpuHealth.OK, None)


async def test_a_driver_of_before_510_is_read_by_its_own_calls(
    make_probe, libraries: dict[str, Path], hardware: Hardware
) -> None:
    hardware.is_now(f"driver 470.82\n{RTX}\nprocess 0 {os.getpid()} 2048 compute\nused 0 600")
    old = Hardware(libraries["old"], hardware.file)
    [gpu] = devices(await make_probe(old.environ).look())
    assert (gpu.health, gpu.total_mb, gpu.free_mb, gpu.driver_mb) == (
        GpuHealth.OK,
        24576,
        24576 - 400 - 600 - 2048,
        None,
    )
    assert [(process.pid, process.mb) for process in gpu.processes or ()] == [(os.getpid(), 2048)]
    assert gpu.unseen_mb == 1000  # with the driver's own share, which it does not tell: less than what is thought held


async def test_the_child_ends_with_its_worker(hardware: Hardware) -> None:
    hardware.is_now(RTX)
    program = (
        "import asyncio, os, sys\nfrom worker.probe.gpus import GpuProbe\n"
        "async def main():\n"
        "    probe = GpuProbe(os.environ)\n    await probe.look()\n    print(probe.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    environ = os.environ | hardware.environ
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, env=environ
    )
    assert worker.stdout is not None
    lines = [line async for line in until_number(worker.stdout)]
    pid = int(lines[-1])
    worker.kill()
    await worker.wait()
    await eventually(lambda: not Path(f"/proc/{pid}/fd/0").exists(), within_s=20)


async def until_number(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while line := await stream.readline():
        yield line
        if line.strip().isdigit():
            return


async def test_no_setting_and_no_token_reaches_the_child(make_probe, hardware: Hardware) -> None:
    hardware.is_now(RTX)
    probe = make_probe({**hardware.environ, "JOBD_TOKEN": "secret"})
    await probe.look()
    assert b"secret" not in Path(f"/proc/{probe.pid}/environ").read_bytes()


# What is made of a snapshot, whatever it says.

PRINTABLE = st.text(
    st.characters(min_codepoint=32, max_codepoint=126), max_size=300
)  # the child lets nothing else pass
NUMBERS = st.none() | st.integers(-(2**70), 2**70) | st.sampled_from([0, 2**64 - 1, 24 << 30])
USES = st.none() | st.lists(st.fixed_dictionaries({"pid": st.integers(0, 2**32), "bytes": NUMBERS}), max_size=4)
DEVICE = st.fixed_dictionaries(
    {
        "index": st.integers(0, 7),
        "uuid": st.none() | st.sampled_from([A, B]),
        "parent": st.none(),
        "model": st.none() | PRINTABLE.map(clean),
        "partitioned": st.booleans(),
        "unified": st.booleans(),
        "total": NUMBERS,
        "free": NUMBERS,
        "driver": NUMBERS,
        "utilisation": st.none() | st.integers(0, 100),
        "uses": USES,
        "lost": st.booleans(),
        "unhealthy": st.none() | st.just("worn"),
        "faults": st.dictionaries(
            st.sampled_from(["memory", "uuid"]),
            PRINTABLE,
            max_size=2,
        ),
    }
)


@given(st.lists(DEVICE, max_size=4))
@pytest.mark.guarantee("G30")
def test_whatever_the_driver_says_no_memory_is_counted_twice_and_nothing_absurd_is_told(found: list[Device]) -> None:
    snapshot: Snapshot = {
        "state": "ok",
        "why": None,
        "driver": None,
        "cuda": None,
        "devices": found,
        "processes": {},
    }
    told = Devices().found(snapshot, (), 0)
    assert told.state is GpuState.OK and len(told.gpus) == len(found)
    for gpu in told.gpus:
        if gpu.total_mb is None or gpu.free_mb is None:
            assert gpu.health is not GpuHealth.OK or gpu.unified
            continue
        used = gpu.total_mb - gpu.free_mb
        assert 0 <= used <= gpu.total_mb
        assert all((process.mb or 0) <= used for process in gpu.processes or ())
        if gpu.unseen_mb:
            known = sum(process.mb or 0 for process in gpu.processes or ())
            assert known + gpu.unseen_mb + (gpu.driver_mb or 0) <= used
        Gpu.model_validate(gpu.model_dump())


def snapshot_with(used_mb: int, uses: list[tuple[int, int]]) -> Snapshot:
    device: Device = {
        "index": 0,
        "uuid": A,
        "parent": None,
        "model": "stub",
        "partitioned": False,
        "unified": False,
        "total": 24576 << 20,
        "free": (24576 - used_mb) << 20,
        "driver": 0,
        "utilisation": 0,
        "uses": [{"pid": pid, "bytes": mb << 20} for pid, mb in uses],
        "lost": False,
        "unhealthy": None,
        "faults": {},
    }
    return {"state": "ok", "why": None, "driver": None, "cuda": None, "devices": [device], "processes": {}}


@pytest.mark.trial("B48")
def test_memory_is_held_only_after_it_was_so_for_a_while() -> None:
    """A process that ends is gone from the list a moment before its memory is free."""
    devices_ = Devices(held_s=10)

    def health(used_mb: int, at: float, *uses: tuple[int, int]) -> GpuHealth:
        return devices_.found(snapshot_with(used_mb, list(uses)), (), at).gpus[0].health

    assert health(8192, 0, (7, 8192)) is GpuHealth.OK
    assert health(8192, 5) is GpuHealth.OK
    assert health(8192, 14) is GpuHealth.OK
    assert health(8192, 15) is GpuHealth.MEMORY_HELD
    assert health(100, 16) is GpuHealth.OK
    assert health(8192, 17) is GpuHealth.OK  # it begins anew
    assert health(8192, 27) is GpuHealth.MEMORY_HELD


@pytest.mark.trial("B48")
def test_memory_of_a_process_of_ours_that_is_gone_is_held_though_the_driver_names_it_still() -> None:
    devices_ = Devices(held_s=10)
    ours = snapshot_with(1600, [(7, 600), (8, 1000)])
    ours["processes"] = {
        "7": {"user": "u", "name": "a", "groups": ["/x/jobd-1/42.1"], "line": []},
        "8": {"user": "u", "name": "b", "groups": ["/"], "line": []},
    }
    tree = Tree("42.1", frozenset(), "/jobd-1/42.1")
    devices_.found(ours, (tree,), 0)

    gone = snapshot_with(1600, [(7, 600), (8, 1000)])
    gone["processes"] = {"8": ours["processes"]["8"]}
    found = [devices_.found(gone, (), at).gpus[0] for at in (1, 10, 11, 12)]
    assert [gpu.health for gpu in found] == [GpuHealth.OK, GpuHealth.OK, GpuHealth.MEMORY_HELD, GpuHealth.MEMORY_HELD]
    assert [gpu.unseen_mb for gpu in found] == [600] * 4
    assert [process.pid for process in found[-1].processes or ()] == [8]
    assert "42.1 had it and is gone" in (found[-1].why or "")
    assert devices_.found(snapshot_with(1000, [(8, 1000)]), (), 13).gpus[0].health is GpuHealth.OK
    again = Devices(held_s=10)  # one that never saw it does not know whose it was: another container's, perhaps
    assert [again.found(gone, (), at).gpus[0].health for at in (1, 20)] == [GpuHealth.OK] * 2


def test_a_process_is_ours_by_its_cgroup_or_by_a_parent_that_is_the_very_same() -> None:
    snapshot = snapshot_with(3000, [(10, 1000), (11, 1000), (12, 1000)])
    line = [{"pid": 10, "start": 5}, {"pid": 4, "start": 3}]
    snapshot["processes"] = {
        "10": {"user": "u", "name": "a", "groups": ["/"], "line": line},  # type: ignore[typeddict-item]
        "11": {"user": "u", "name": "b", "groups": ["/", "/x/jobd-1/42.1/sub"], "line": []},
        "12": {"user": "u", "name": "c", "groups": ["/x/jobd-1/42.10"], "line": []},
    }

    def owners(*roots: tuple[int, int | None]) -> list[str | None]:
        tree = Tree("42.1", frozenset(roots), "/jobd-1/42.1")
        return [process.job for process in devices(snapshot, (tree,))[0].processes or ()]

    assert owners((4, 3)) == ["42.1", "42.1", None]
    assert owners((4, 9)) == [None, "42.1", None]  # the pid was used again


@given(st.text() | st.binary())
def test_of_what_the_driver_says_only_printable_text_passes_and_not_too_much(said: str | bytes) -> None:
    assert clean(said).isascii() and clean(said).isprintable() and len(clean(said)) <= 200
