"""A training loop that survives whatever happens to it: it fits a line by gradient descent, in plain Python.

    job submit --wait --name train --checkpoint-grace-s 30 -- python examples/train_with_checkpoints.py --epochs 200

Two habits make it safe to run again:

- It saves after some epochs, and starts from what is saved. JOBD_CHECKPOINT_DIR is kept over all deliveries of a job:
  if the worker's machine dies, the job is queued again and the next delivery goes on from there.
- On TERM (job cancel, and every other stop) it saves once more and says `jobd-checkpoint-complete`. It has
  JOBD_CHECKPOINT_GRACE_S seconds for that before KILL.

Without jobd it keeps its checkpoints in ./checkpoints.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

RATE = 0.05
SAVE_EVERY = 5


@dataclass
class Model:
    """y = slope · x + offset, after so many epochs."""

    epoch: int = 0
    slope: float = 0.0
    offset: float = 0.0


def load(file: Path) -> Model:
    """The last saved model, or a new one."""
    return Model(**json.loads(file.read_text())) if file.exists() else Model()


def save(file: Path, model: Model) -> None:
    """Whole or not at all: a machine that dies in the middle leaves the one before."""
    temporary = file.with_suffix(f".{os.getpid()}")
    with temporary.open("w") as out:
        json.dump(asdict(model), out)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)


def train_one_epoch(model: Model, points: list[tuple[float, float]]) -> float:
    """One step down the gradient; the mean squared error before it."""
    errors = [(x, model.slope * x + model.offset - y) for x, y in points]
    model.slope -= RATE * sum(2 * error * x for x, error in errors) / len(points)
    model.offset -= RATE * sum(2 * error for _, error in errors) / len(points)
    model.epoch += 1
    return sum(error**2 for _, error in errors) / len(points)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--epoch-s", type=float, default=0.05, help="how long an epoch takes at least")
    arguments = parser.parse_args()

    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        stopping = True  # the loop saves when its epoch is over: a handler that saved could cut one in half

    signal.signal(signal.SIGTERM, stop)

    directory = Path(os.environ.get("JOBD_CHECKPOINT_DIR", "checkpoints"))
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "model.json"
    model = load(file)
    if model.epoch:
        print(f"resumed after epoch {model.epoch}, delivery {os.environ.get('JOBD_ATTEMPT', '-')}", flush=True)

    chance = random.Random(0)
    points = [(x := chance.uniform(-1, 1), 3 * x + 1 + chance.gauss(0, 0.1)) for _ in range(200)]
    while model.epoch < arguments.epochs and not stopping:
        loss = train_one_epoch(model, points)
        print(f"epoch {model.epoch} of {arguments.epochs}: loss {loss:.4f}", flush=True)
        if model.epoch % SAVE_EVERY == 0:
            save(file, model)
        time.sleep(arguments.epoch_s)

    save(file, model)
    print("jobd-checkpoint-complete", flush=True)
    if stopping:
        print(f"stopped after epoch {model.epoch}; the next start goes on from here", flush=True)
        return 128 + signal.SIGTERM
    print(f"done: y = {model.slope:.2f} x + {model.offset:.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
