"""How long training stands still when a worker joins and when one leaves: real processes, a toy state."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.report import Printer, measured
from levada.runtime.report import Report, read

ROUNDS, FEW_ROUNDS = 20, 4
LIMIT_MS = 500.0
_PATIENCE_S = 60.0

_SCRIPT = """
import array, time, levada.runtime
job = levada.runtime.init()
net = array.array("d", bytes(800_000))
job.state(net=net)
for step in job.steps(10**9):
    with job.guard():
        sums = array.array("d", [1.0] * 1000)
        job.group.allreduce(sums)
        time.sleep(0.005)
"""


def run(printer: Printer, *, quick: bool) -> None:
    """Adds a second worker and takes it away again, some times."""
    printer.title("The runtime: pauses at a change of members")
    with tempfile.TemporaryDirectory() as root:
        job = _Job(Path(root, "jobs", "job"))
        try:
            joins, leaves = job.measure(FEW_ROUNDS if quick else ROUNDS)
        finally:
            job.end()
    for what, pauses in (("a worker joins", joins), ("a worker leaves", leaves)):
        printer.add(measured(pauses, bench="pauses", what=what, unit="ms", limit=LIMIT_MS))


class _Job:
    """One worker that stays, and others that come and go."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._generation = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def measure(self, rounds: int) -> tuple[list[float], list[float]]:
        """Seconds of standing still, for each coming and each going."""
        joins, leaves = [], []
        self._generation = 1
        stays = self._spawn()
        self._publish(stays)
        _wait(lambda: self._report(stays).step > 10)
        for _ in range(rounds):
            self._generation += 1
            guest = self._spawn()
            _wait(lambda guest=guest: bool(self._report(guest).flags & 1))  # type: ignore[misc]
            joins.append(self._change(stays, stays, guest))
            self._generation += 1
            leaves.append(self._change(stays, stays))
        return joins, leaves

    def end(self) -> None:
        """Ends all workers."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _change(self, stays: str, *members: str) -> float:
        self._publish(*members)
        _wait(lambda: all(self._report(member).generation == self._generation for member in members))
        return self._report(stays).pause_s

    def _spawn(self) -> str:
        name = f"g{self._generation}-0"
        state = self._folder / "workers" / name
        state.mkdir(parents=True)
        env = {**os.environ, "LEVADA_STATE_DIR": str(state), "LEVADA_GENERATION": str(self._generation)}
        self._processes.append(subprocess.Popen([sys.executable, "-c", _SCRIPT], env=env))
        return name

    def _publish(self, *members: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            master = {"address": "127.0.0.1", "port": probe.getsockname()[1]}
        world = {"generation": self._generation, "members": members, "master": master}
        fresh = self._folder / "world.json.new"
        fresh.write_text(json.dumps(world))
        os.replace(fresh, self._folder / "world.json")

    def _report(self, name: str) -> Report:
        return read(self._folder / "workers" / name / "report") or Report()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the workers did not do as they were told")
        time.sleep(0.01)
