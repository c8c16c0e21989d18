"""A tiny supervisor: it spawns workers with the environment they would have, publishes worlds and reads reports."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from levada.runtime.report import Report, read
from tests.patience import WAIT_S


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = WAIT_S) -> None:
    """Returns as soon as *condition* holds; fails with *what* when it takes too long."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"in {limit_s:g} s not seen: {what}")
        time.sleep(0.01)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Worker:
    """One process of a job."""

    def __init__(self, name: str, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.folder = folder
        self.process = process

    @property
    def report(self) -> Report:
        """What it says of itself; empty before it has said anything."""
        return read(self.folder / "report") or Report()

    @property
    def output(self) -> str:
        """All it has printed."""
        return (self.folder / "log").read_text()

    def ended(self, limit_s: float = WAIT_S) -> int:
        """Its exit code."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end:\n{self.output}") from None

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)


class Supervisor:
    """The workers of one job, in a folder laid out as that of a server."""

    def __init__(
        self, root: Path, command: Sequence[str], env: Mapping[str, str] | None = None, python: str = sys.executable
    ) -> None:
        self.folder = root / "jobs" / "job"
        self.checkpoints = self.folder / "checkpoints"
        self.checkpoints.mkdir(parents=True)
        self.workers: dict[str, Worker] = {}
        self.members: list[Worker] = []
        self.generation = 0
        self._command = [python, *command]
        self._env = dict(env or {})
        self._ports: defaultdict[int, int] = defaultdict(free_port)
        self._ahead: list[Worker] = []

    @property
    def port(self) -> int:
        """Where the members of this generation meet."""
        return self._ports[self.generation]

    def start(self, size: int, ahead: int = 0, **more: object) -> list[Worker]:
        """A whole new generation of *size* workers.

        So many newcomers of the next one are started *ahead*: however long their imports take, nothing is trained yet.
        """
        self.generation += 1
        fresh = self.spawn(size)
        if ahead:
            self.generation += 1
            self._ahead = self.spawn(ahead, size)
            self.generation -= 1
            self.are_ready([*fresh, *self._ahead])
        self.publish(fresh, **more)
        return fresh

    def resize(self, stay: Sequence[Worker], add: int = 0) -> list[Worker]:
        """The next generation: newcomers are started and ready before it is published."""
        self.generation += 1
        fresh, self._ahead = self._ahead or self.spawn(add, len(stay)), []
        assert len(fresh) == add
        self.are_ready(fresh)
        self.publish([*stay, *fresh])
        return self.members

    def spawn(self, count: int, stay: int = 0) -> list[Worker]:
        """So many workers of this generation, besides those who *stay*, not members yet."""
        return [self._spawn(index, stay + index, stay + count) for index in range(count)]

    def are_ready(self, workers: Sequence[Worker]) -> None:
        """Returns when all of them wait to become members."""
        self.sees(lambda: all(worker.report.flags & 1 for worker in workers), "all are ready")

    def publish(self, members: Sequence[Worker], **more: object) -> None:
        """Replaces world.json."""
        self.members = list(members)
        world = {
            "generation": self.generation,
            "members": [member.name for member in members],
            "addresses": ["127.0.0.1"] * len(members),
            "master": {"address": "127.0.0.1", "port": self.port},
            **more,
        }
        fresh = self.folder / "world.json.new"
        fresh.write_text(json.dumps(world))
        os.replace(fresh, self.folder / "world.json")

    def entered(self) -> None:
        """Returns when all members train in the current generation."""
        self.sees(
            lambda: all(member.report.generation == self.generation for member in self.members),
            f"all are in generation {self.generation}",
        )

    def reached(self, step: int) -> None:
        """Returns when the job has done so many steps."""
        self.sees(lambda: self.members[0].report.step >= step, f"step {step}")

    def sees(self, condition: Callable[[], object], what: str) -> None:
        """Waits, and shows the output of all workers if it was in vain."""
        try:
            wait_until(lambda: bool(condition()), what)
        except AssertionError as error:
            shown = "\n".join(
                f"--- {w.name} ({w.process.poll()}) {w.report}\n{w.output}" for w in self.workers.values()
            )
            raise AssertionError(f"{error}\n{shown}") from None

    def _spawn(self, index: int, rank: int, size: int) -> Worker:
        name = f"g{self.generation}-{index}"
        folder = self.folder / "workers" / name
        folder.mkdir(parents=True)
        env = {
            "PATH": os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
            "LEVADA_JOB": "job",
            "LEVADA_GENERATION": str(self.generation),
            "LEVADA_RANK": str(rank),
            "LEVADA_WORLD_SIZE": str(size),
            "LEVADA_NODE": "node0",
            "LEVADA_CHECKPOINT_DIR": str(self.checkpoints),
            "LEVADA_STATE_DIR": str(folder),
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            **self._env,
        }
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(
                self._command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.workers[name] = worker = Worker(name, folder, process)
        return worker


@contextlib.contextmanager
def supervising(
    root: Path, command: Sequence[str], env: Mapping[str, str] | None = None, python: str = sys.executable
) -> Iterator[Supervisor]:
    """A supervisor whose workers are gone at the end, whatever happens."""
    supervisor = Supervisor(root, command, env, python)
    try:
        yield supervisor
    finally:
        for worker in supervisor.workers.values():
            worker.process.kill()
            worker.process.wait()
        _sweep(f"LEVADA_STATE_DIR={supervisor.folder}/".encode())


def _sweep(mark: bytes) -> None:
    """Ends what workers have left behind, in whatever process group it is."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(part.startswith(mark) for part in (folder / "environ").read_bytes().split(b"\0")):
                os.kill(int(folder.name), signal.SIGKILL)
