"""Minimal supervisor: spawns workers, publishes generations, reads reports."""

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

from levada.runtime.report import ProgressReport, read
from tests.timeouts import WAIT_S


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = WAIT_S) -> None:
    """Wait until *condition* holds; fail with *what* after *limit_s*."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s:g} s: {what}")
        time.sleep(0.01)


def free_port() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class WorkerProcess:
    """One worker process of a job."""

    def __init__(self, name: str, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.name = name
        self.folder = folder
        self.process = process

    @property
    def report(self) -> ProgressReport:
        """The last progress report; empty before the first one."""
        return read(self.folder / "report") or ProgressReport()

    @property
    def output(self) -> str:
        """Standard output and standard error."""
        return (self.folder / "log").read_text()

    def exit_code(self, limit_s: float = WAIT_S) -> int:
        """Wait for the process to end and return its exit code."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end:\n{self.output}") from None

    def signal(self, number: int) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)


class Supervisor:
    """The workers of one job, in the folder layout of a server."""

    def __init__(
        self, root: Path, command: Sequence[str], env: Mapping[str, str] | None = None, python: str = sys.executable
    ) -> None:
        self.folder = root / "jobs" / "job"
        self.checkpoints = self.folder / "checkpoints"
        self.checkpoints.mkdir(parents=True)
        self.workers: dict[str, WorkerProcess] = {}
        self.members: list[WorkerProcess] = []
        self.generation = 0
        self._command = [python, *command]
        self._env = dict(env or {})
        self._ports: defaultdict[int, int] = defaultdict(free_port)
        self._ahead: list[WorkerProcess] = []

    @property
    def port(self) -> int:
        """The rendezvous port of the current generation."""
        return self._ports[self.generation]

    def start(self, size: int, ahead: int = 0, **more: object) -> list[WorkerProcess]:
        """Start a new generation of *size* workers.

        *ahead* new workers of the generation after it are started at once, so that their imports delay no resize.
        """
        self.generation += 1
        fresh = self.spawn(size)
        if ahead:
            self.generation += 1
            self._ahead = self.spawn(ahead, size)
            self.generation -= 1
            self.wait_ready([*fresh, *self._ahead])
        self.publish(fresh, **more)
        return fresh

    def resize(self, stay: Sequence[WorkerProcess], add: int = 0) -> list[WorkerProcess]:
        """Publish the next generation after its new workers are ready."""
        self.generation += 1
        fresh, self._ahead = self._ahead or self.spawn(add, len(stay)), []
        assert len(fresh) == add
        self.wait_ready(fresh)
        self.publish([*stay, *fresh])
        return self.members

    def spawn(self, count: int, stay: int = 0) -> list[WorkerProcess]:
        """Start *count* workers of this generation, not members yet; *stay* others remain."""
        return [self._spawn(index, stay + index, stay + count) for index in range(count)]

    def wait_ready(self, workers: Sequence[WorkerProcess]) -> None:
        """Wait until all of *workers* wait to become members."""
        self.wait_until(lambda: all(worker.report.flags & 1 for worker in workers), "all are ready")

    def publish(self, members: Sequence[WorkerProcess], **more: object) -> None:
        """Replace world.json."""
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

    def wait_joined(self) -> None:
        """Wait until all members train in the current generation."""
        self.wait_until(
            lambda: all(member.report.generation == self.generation for member in self.members),
            f"all are in generation {self.generation}",
        )

    def wait_step(self, step: int) -> None:
        """Wait until the job has done the given number of steps."""
        self.wait_until(lambda: self.members[0].report.step >= step, f"step {step}")

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until *condition* holds; on timeout show the output of all workers."""
        try:
            wait_until(lambda: bool(condition()), what)
        except AssertionError as error:
            shown = "\n".join(
                f"--- {w.name} ({w.process.poll()}) {w.report}\n{w.output}" for w in self.workers.values()
            )
            raise AssertionError(f"{error}\n{shown}") from None

    def _spawn(self, index: int, rank: int, size: int) -> WorkerProcess:
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
        self.workers[name] = worker = WorkerProcess(name, folder, process)
        return worker


@contextlib.contextmanager
def supervising(
    root: Path, command: Sequence[str], env: Mapping[str, str] | None = None, python: str = sys.executable
) -> Iterator[Supervisor]:
    """A supervisor whose workers are killed at the end."""
    supervisor = Supervisor(root, command, env, python)
    try:
        yield supervisor
    finally:
        for worker in supervisor.workers.values():
            worker.process.kill()
            worker.process.wait()
        _kill_leftovers(f"LEVADA_STATE_DIR={supervisor.folder}/".encode())


def _kill_leftovers(mark: bytes) -> None:
    """Kill processes that workers left behind, in any process group."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(part.startswith(mark) for part in (folder / "environ").read_bytes().split(b"\0")):
                os.kill(int(folder.name), signal.SIGKILL)
