"""Pauses of training when a worker joins or leaves, with real processes and a small state."""

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
from levada.runtime.report import ProgressReport, read

ROUNDS, FEW_ROUNDS = 20, 4
LIMIT_MS = 500.0
_TIMEOUT_S = 60.0

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
    """Add and remove a second worker repeatedly."""
    printer.title("Runtime: pauses when workers change")
    with tempfile.TemporaryDirectory() as root:
        job = _Job(Path(root, "jobs", "job"))
        try:
            joins, leaves = job.measure(FEW_ROUNDS if quick else ROUNDS)
        finally:
            job.end()
    for what, pauses in (("a worker joins", joins), ("a worker leaves", leaves)):
        printer.add(measured(pauses, bench="pauses", what=what, unit="ms", limit=LIMIT_MS))


class _Job:
    """A job with one permanent worker; others join and leave."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._generation = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def measure(self, rounds: int) -> tuple[list[float], list[float]]:
        """Return the pauses in seconds for each join and each leave."""
        joins, leaves = [], []
        self._generation = 1
        permanent = self._spawn()
        self._publish(permanent)
        _wait(lambda: self._report(permanent).step > 10)
        for _ in range(rounds):
            self._generation += 1
            second = self._spawn()
            _wait(lambda second=second: bool(self._report(second).flags & 1))  # type: ignore[misc]
            joins.append(self._change(permanent, permanent, second))
            self._generation += 1
            leaves.append(self._change(permanent, permanent))
        return joins, leaves

    def end(self) -> None:
        """Kill all workers."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _change(self, permanent: str, *members: str) -> float:
        self._publish(*members)
        _wait(lambda: all(self._report(member).generation == self._generation for member in members))
        return self._report(permanent).pause_s

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

    def _report(self, name: str) -> ProgressReport:
        return read(self._folder / "workers" / name / "report") or ProgressReport()


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("workers did not reach the expected state within 60 s")
        time.sleep(0.01)
