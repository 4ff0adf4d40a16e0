"""Machines as data: what the driver says, and what a broker must then show.

`{ours}` and `{orphan}` are processes of a job that runs there (its main one, and one that forked twice and left its
session), `{foreign}` is nobody's, `{nobody}` no process at all. A step is shown once the hardware is as it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Expected = dict[str, Any]
NOT_THERE = None
GPU = "GPU-{n}{n}{n}{n}{n}{n}{n}{n}-0000-0000-0000-000000000000"
A, B, C, D, E, F, G, H = (GPU.format(n=n) for n in range(1, 9))
I1, I2, I3 = (f"MIG-{n}{n}{n}{n}{n}{n}{n}{n}-0000-0000-0000-000000000000" for n in range(1, 4))
RTX = f"gpu {A} 24576 400 NVIDIA GeForce RTX 4090"
H100 = f"gpu {B} 81920 600 NVIDIA H100 80GB HBM3"


@dataclass(frozen=True)
class Step:
    hardware: str
    shown: Expected


@dataclass(frozen=True)
class Scenario:
    name: str
    steps: tuple[Step, ...]


def one(name: str, hardware: str, **shown: Any) -> Scenario:
    return Scenario(name, (Step(hardware, shown),))


def gpu(uuid: str | None = A, health: str = "ok", **more: Any) -> Expected:
    return {"uuid": uuid, "health": health, **more}


def vram(**more: Any) -> Expected:
    return {"vram_gb": more}


SCENARIOS = [
    one(
        "one card",
        f"{RTX}\nutilisation 0 37",
        gpus=[
            gpu(index=0, model="NVIDIA GeForce RTX 4090", utilisation=37, jobs=NOT_THERE, foreign=NOT_THERE)
            | vram(total=24.0, free=23.6, foreign=NOT_THERE, unseen=NOT_THERE)
        ],
        gpus_why=NOT_THERE,
    ),
    one("the driver's version is told", f"driver 570.86.15\ncuda 12080\n{RTX}", driver="570.86.15 (CUDA 12.8)"),
    one(
        "eight cards",
        "\n".join(f"gpu {uuid} 81920 600 NVIDIA H100" for uuid in (A, B, C, D, E, F, G, H)),
        gpus=[gpu(uuid, index=n) for n, uuid in enumerate((A, B, C, D, E, F, G, H))],
    ),
    one(
        "unlike cards",
        f"{RTX}\n{H100}",
        gpus=[
            gpu(A) | vram(total=24.0, free=23.6),
            gpu(B, model="NVIDIA H100 80GB HBM3") | vram(total=80.0, free=79.4),
        ],
    ),
    one(
        "no card under a driver",
        "count 0",
        gpus=NOT_THERE,
        gpus_why="the NVIDIA driver is loaded, and has no device",
    ),
    one(
        "a foreign process",
        f"{RTX}\nprocess 0 {{foreign}} 18432 compute",
        gpus=[
            gpu(jobs=NOT_THERE, foreign=[{"pid": "{foreign}", "user": "{me}", "name": "sleep", "gb": 18.0}])
            | vram(free=5.6, foreign=18.0, unseen=NOT_THERE)
        ],
    ),
    one(
        "a foreign process that computes and draws is counted once",
        f"{RTX}\nprocess 0 {{foreign}} 8192 both",
        gpus=[gpu(foreign=[{"gb": 8.0}]) | vram(free=15.6, foreign=8.0)],
    ),
    one(
        "only drawing counts too",
        f"{RTX}\nprocess 0 {{foreign}} 2048 graphics",
        gpus=[gpu(foreign=[{"gb": 2.0}]) | vram(foreign=2.0)],
    ),
    one(
        "a process of ours",
        f"{RTX}\nprocess 0 {{ours}} 4096 compute",
        gpus=[gpu(jobs=["{job}"], foreign=NOT_THERE) | vram(free=19.6, foreign=NOT_THERE)],
    ),
    one(
        "a process of ours that forked twice and left its session",
        f"{RTX}\nprocess 0 {{orphan}} 4096 compute",
        gpus=[gpu(jobs=["{job}"], foreign=NOT_THERE)],
    ),
    one(
        "ours and a foreign one, on two cards",
        f"{RTX}\n{H100}\nprocess 0 {{ours}} 1024 compute\nprocess 1 {{ours}} 2048 compute\nprocess 1 {{foreign}} 4096 compute",
        gpus=[
            gpu(A, jobs=["{job}"], foreign=NOT_THERE),
            gpu(B, jobs=["{job}"], foreign=[{"pid": "{foreign}", "gb": 4.0}]) | vram(foreign=4.0),
        ],
    ),
    Scenario(
        "a process that takes more and more",
        tuple(
            Step(
                f"{RTX}\nprocess 0 {{foreign}} {mb} compute",
                {"gpus": [gpu(foreign=[{"gb": mb / 1024}]) | vram(free=round((24176 - mb) / 1024, 1))]},
            )
            for mb in (512, 8192, 20480)
        ),
    ),
    Scenario(
        "a foreign process ends",
        (
            Step(f"{RTX}\nprocess 0 {{foreign}} 18432 compute", {"gpus": [gpu() | vram(foreign=18.0)]}),
            Step(RTX, {"gpus": [gpu(foreign=NOT_THERE) | vram(free=23.6, foreign=NOT_THERE)]}),
        ),
    ),
    one(
        "a process in another pid namespace",
        f"{RTX}\nprocess 0 {{nobody}} 4096 compute",
        gpus=[gpu(jobs=NOT_THERE, foreign=NOT_THERE) | vram(free=19.6, foreign=NOT_THERE, unseen=4.0)],
    ),
    one(
        "per-process memory that is not told",
        f"{RTX}\nprocess 0 {{foreign}} NA compute\nused 0 6144",
        gpus=[
            gpu(foreign=[{"pid": "{foreign}", "gb": NOT_THERE}]) | vram(free=17.6, foreign=NOT_THERE, unseen=NOT_THERE)
        ],
    ),
    one(
        "per-process memory that is a huge number",
        f"{RTX}\nprocess 0 {{foreign}} =18446744073709551614 compute",
        gpus=[gpu(foreign=[{"pid": "{foreign}", "gb": NOT_THERE}]) | vram(total=24.0, free=23.6)],
    ),
    one(
        "unified memory",
        f"gpu {A} 0 0 NVIDIA GB10\nfail DeviceGetMemoryInfo 3 0\nprocess 0 {{foreign}} 2048 compute",
        gpus=[gpu(unified=True, vram_gb=NOT_THERE, foreign=[{"gb": 2.0}])],
    ),
    one(
        "instances of a card are devices of their own",
        f"{H100}\n{RTX}\nmig 0 {I1} 9856\nmig 0 {I2} 9856\nmig 0 {I3} 19968\nprocess 0 {{ours}} 4096 compute 1\n"
        "fail DeviceGetMemoryInfo 4 9",
        gpus=[
            gpu(I1, index=0, parent=B, jobs=NOT_THERE) | vram(total=9.6, free=9.6),
            gpu(I2, index=0, parent=B, jobs=["{job}"]) | vram(total=9.6, free=5.6),
            gpu(I3, index=0, parent=B, jobs=NOT_THERE) | vram(total=19.5),
            gpu(A, index=1, parent=NOT_THERE),
        ],
    ),
    one(
        "a card in MIG mode without instances can be given to nobody",
        f"{H100}\npartitioned 0",
        gpus=[gpu(B, "partitioned", why="it is in MIG mode and has no instances", vram_gb=NOT_THERE)],
    ),
    Scenario(
        "a card is lost, and the other goes on",
        (
            Step(f"{RTX}\n{H100}", {"gpus": [gpu(A), gpu(B)]}),
            Step(
                f"{RTX}\n{H100}\nfail DeviceGetHandleByIndex 15 1",
                {"gpus": [gpu(A) | vram(free=23.6), gpu(B, "lost", why="device: GPU is lost (NVML 15)")]},
            ),
            Step(RTX, {"gpus": [gpu(A)]}),
        ),
    ),
    one(
        "a card that is lost in the middle of being read",
        f"{RTX}\n{H100}\nfail DeviceGetMemoryInfo 15 0",
        gpus=[gpu(A, "lost", vram_gb=NOT_THERE), gpu(B) | vram(free=79.4)],
    ),
    one(
        "a card that was never read, and is lost",
        f"{RTX}\ngpu {C} 24576 400 NVIDIA RTX A5000\nfail DeviceGetHandleByIndex 15 1",
        gpus=[gpu(A), {"health": "lost", "index": 1, "vram_gb": NOT_THERE}],
    ),
    one(
        "a card that needs a reset",
        f"{RTX}\n{H100}\nfail DeviceGetUtilizationRates 16 0",
        gpus=[gpu(A, "unhealthy", why="GPU requires restart (NVML 16)"), gpu(B)],
    ),
    one(
        "memory that wore out",
        f"{RTX}\n{H100}\nworn 1",
        gpus=[gpu(A), gpu(B, "unhealthy", why="its memory has rows that failed and could not be remapped")],
    ),
    one(
        "an error without a name on one card",
        f"{RTX}\n{H100}\nfail DeviceGetMemoryInfo 999 0",
        gpus=[gpu(A, "unhealthy", why="memory: Unknown Error (NVML 999)"), gpu(B) | vram(free=79.4)],
    ),
    one(
        "a list of processes that is forbidden",
        f"{RTX}\nused 0 8192\nfail DeviceGetComputeRunningProcesses 4 0",
        gpus=[
            gpu(jobs=NOT_THERE, foreign=NOT_THERE, why="processes: Insufficient Permissions (NVML 4)")
            | vram(free=15.6, foreign=NOT_THERE, unseen=NOT_THERE)
        ],
    ),
    Scenario(
        "memory that is never released",
        (
            Step(f"{RTX}\nprocess 0 {{foreign}} 20480 compute", {"gpus": [gpu() | vram(foreign=20.0)]}),
            Step(
                f"{RTX}\nused 0 20480",
                {
                    "gpus": [
                        gpu(
                            health="memory_held",
                            why="20.0 GiB of it are used, and by no process that can be seen",
                            foreign=NOT_THERE,
                        )
                        | vram(free=3.6, unseen=20.0)
                    ]
                },
            ),
            Step(RTX, {"gpus": [gpu() | vram(free=23.6, unseen=NOT_THERE)]}),
        ),
    ),
    one(
        "little that nobody owns is no fault",
        f"{RTX}\nused 0 700",
        gpus=[gpu() | vram(free=22.9, unseen=0.7)],
    ),
    Scenario(
        "a garbled model is the one that it was",
        (
            Step(f"{RTX}\n{H100}", {"gpus": [gpu(A), gpu(B)]}),
            Step(f"{RTX}\n{H100}\ngarbled 0 model", {"gpus": [gpu(A, model="NVIDIA GeForce RTX 4090"), gpu(B)]}),
        ),
    ),
    Scenario(
        "a card with a garbled name is given to nobody",
        (
            Step(f"{RTX}\n{H100}", {"gpus": [gpu(A), gpu(B)]}),
            Step(f"{RTX}\n{H100}\ngarbled 0 uuid", {"gpus": [gpu(A, "unhealthy"), gpu(B)]}),
        ),
    ),
    one(
        "memory that makes no sense",
        f"{RTX}\n{H100}\nmemory 0 25769803776 18446744073709551615",
        gpus=[gpu(A, "unhealthy", vram_gb=NOT_THERE), gpu(B)],
    ),
    one(
        "two thousand million processes",
        f"{RTX}\n{H100}\nmany 0 2000000000",
        gpus=[gpu(A, foreign=NOT_THERE) | vram(free=23.6), gpu(B)],
    ),
    Scenario(
        "thousands of devices",
        (
            Step(RTX, {"gpus": [gpu(A)]}),
            Step(
                f"{RTX}\ncount 4294967",
                {
                    "gpus": [gpu(A, "unknown")],
                    "gpus_why": "the NVIDIA driver does not answer: it says that it has 4294967 devices",
                },
            ),
            Step(RTX, {"gpus": [gpu(A)]}),
        ),
    ),
    Scenario(
        "more cards than before, then fewer",
        (
            Step(RTX, {"gpus": [gpu(A)]}),
            Step(f"{RTX}\n{H100}", {"gpus": [gpu(A), gpu(B)]}),
            Step(H100, {"gpus": [gpu(B, index=0)]}),
        ),
    ),
    Scenario(
        "the count itself fails, and comes back",
        (
            Step(RTX, {"gpus": [gpu(A)]}),
            Step(
                f"{RTX}\nfail DeviceGetCount 999",
                {
                    "gpus": [gpu(A, "unknown", model="NVIDIA GeForce RTX 4090")],
                    "gpus_why": "the NVIDIA driver does not answer: Unknown Error (NVML 999)",
                },
            ),
            Step(RTX, {"gpus": [gpu(A) | vram(free=23.6)], "gpus_why": NOT_THERE}),
        ),
    ),
    Scenario(
        "library and driver of two versions",
        (
            Step(RTX, {"gpus": [gpu(A)]}),
            # The library that is loaded goes on until a call fails; then a fresh start finds out why.
            Step(
                f"{RTX}\nfail DeviceGetCount 1\nfail Init 18",
                {
                    "gpus": [gpu(A, "unknown")],
                    "gpus_why": "the NVIDIA driver does not start: RM has detected an NVML/RM version mismatch. (NVML 18); "
                    "restart the machine, or reload the driver",
                },
            ),
            Step(RTX, {"gpus": [gpu(A)], "gpus_why": NOT_THERE}),
        ),
    ),
    Scenario(
        "a driver that hangs in a call, and later doesn't",
        (
            Step(RTX, {"gpus": [gpu(A)]}),
            Step(
                f"{RTX}\nhang DeviceGetMemoryInfo 600",
                {"gpus": [gpu(A, "unknown")], "gpus_why": "the NVIDIA driver hangs: no answer within 5 s"},
            ),
            Step(RTX, {"gpus": [gpu(A) | vram(free=23.6)], "gpus_why": NOT_THERE}),
        ),
    ),
    Scenario(
        "a library that crashes its process",
        (
            Step(RTX, {"gpus": [gpu(A)]}),
            Step(
                f"{RTX}\ncrash DeviceGetUUID",
                {"gpus": [gpu(A, "unknown")], "gpus_why": "the GPU probe ended while it was asked (signal 6)"},
            ),
            Step(RTX, {"gpus": [gpu(A)]}),
        ),
    ),
    Scenario(
        "the driver is reloaded",
        (
            Step(RTX, {"gpus": [gpu(A)]}),
            Step(
                "count 0\nfail DeviceGetCount 9\nfail Init 9",
                {
                    "gpus": NOT_THERE,
                    "gpus_why": "libnvidia-ml.so.1 is here, but the NVIDIA driver is not loaded",
                },
            ),
            Step(f"{RTX}\n{H100}\ndriver 3", {"gpus": [gpu(A), gpu(B)], "driver": "3 (CUDA 13.0)"}),
        ),
    ),
]
