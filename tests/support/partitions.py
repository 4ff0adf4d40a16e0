"""Two hosts of our own on this machine: network namespaces with a wire between them, and ways to cut it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from support.requirements import require

BROKER_ADDRESS = "10.99.71.1"
WORKER_ADDRESS = "10.99.71.2"


@dataclass(frozen=True)
class Wire:
    """`broker` and `worker` name the namespaces; a program gets into one by the words of `inside`."""

    broker: str
    worker: str

    @staticmethod
    def inside(namespace: str) -> list[str]:
        return ["ip", "netns", "exec", namespace]

    def cut(self) -> None:
        """Nothing passes, in either direction."""
        self._rules(self.worker, f"ip saddr {BROKER_ADDRESS} drop")
        self._rules(self.broker, f"ip saddr {WORKER_ADDRESS} drop")

    def cut_answers(self) -> None:
        """What the worker says arrives; what it is answered does not."""
        self._rules(self.worker, f"ip saddr {BROKER_ADDRESS} drop")

    def cut_requests(self) -> None:
        """What the worker says is lost; the broker could be heard."""
        self._rules(self.broker, f"ip saddr {WORKER_ADDRESS} drop")

    def lose(self, percent: int) -> None:
        """By chance, in both directions."""
        self._rules(self.worker, f"ip saddr {BROKER_ADDRESS} numgen random mod 100 < {percent} drop")
        self._rules(self.broker, f"ip saddr {WORKER_ADDRESS} numgen random mod 100 < {percent} drop")

    def heal(self) -> None:
        for namespace in (self.broker, self.worker):
            _run("ip", "netns", "exec", namespace, "nft", "flush", "ruleset")

    def _rules(self, namespace: str, rule: str) -> None:
        table = f"table inet jobd {{\n chain in {{\n type filter hook input priority 0;\n {rule}\n }}\n}}\n"
        subprocess.run([*self.inside(namespace), "nft", "-f", "-"], input=table.encode(), check=True)


@contextmanager
def wire(tag: str) -> Iterator[Wire]:
    """Make both hosts, and take them away again. `tag` keeps the names of several tests apart."""
    for program, package in (("ip", "iproute2"), ("nft", "nftables")):
        require(program, shutil.which(program), how=f"apt-get install {package}")
    made = Wire(f"jobd-b-{tag}", f"jobd-w-{tag}")
    first = subprocess.run(["ip", "netns", "add", made.broker], capture_output=True, text=True, check=False)
    require("a network namespace", first.returncode == 0, how="run as root")
    try:
        _run("ip", "netns", "add", made.worker)
        _run(
            "ip",
            "link",
            "add",
            "jobd0",
            "netns",
            made.broker,
            "type",
            "veth",
            "peer",
            "name",
            "jobd1",
            "netns",
            made.worker,
        )
        for namespace, device, address in (
            (made.broker, "jobd0", BROKER_ADDRESS),
            (made.worker, "jobd1", WORKER_ADDRESS),
        ):
            _run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", device)
            _run("ip", "-n", namespace, "link", "set", device, "up")
            _run("ip", "-n", namespace, "link", "set", "lo", "up")
        yield made
    finally:
        for namespace in (made.broker, made.worker):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)
