"""Many runs at a time, each process taking the next run when it is through with one.

A process that dies fails its run and nobody else's. When whoever began the sweep is gone, even killed, its processes
end by themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec

from levada.errors import LevadaError
from levada.sim.sweep.folder import Folder
from levada.sim.sweep.one import run_one
from levada.sim.sweep.plan import Task

FAILED = "failed"
#: Each process computes on one core; libraries that would take them all are told so before it begins.
_ONE_CORE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")


class Done(msgspec.Struct, frozen=True):
    """A run is over: `finished`, `saturated` or `failed`, and why in the last case."""

    key: str
    status: str
    text: str = ""


def work(tasks: list[Task], folder: Folder, processes: int) -> Iterator[Done]:
    """Runs all of them, so many at a time, and tells of each when it is over. What is closed early is stopped."""
    # What is large comes first: nobody shall wait for one long run at the end. Results do not depend on it.
    todo = sorted(tasks, key=lambda task: (-(task.settings.rate or 0.0), -(task.settings.jobs or 0)))
    todo.reverse()
    workers: list[_Worker] = []
    try:
        while todo or workers:
            while todo and len(workers) < processes:
                worker = _Worker(folder)
                workers.append(worker)
                worker.take(todo.pop())
            ready = wait([worker.pipe for worker in workers])
            for worker in [each for each in workers if each.pipe in ready]:
                yield worker.answer()
                if worker.is_dead() or not todo:
                    workers.remove(worker)
                    worker.end()
                else:
                    worker.take(todo.pop())
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """One process."""

    def __init__(self, folder: Folder) -> None:
        # A process of its own from scratch: a fork would take along threads and locks of this one.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, str(folder.path)), daemon=True)
        before = {name: os.environ.get(name) for name in _ONE_CORE}
        os.environ.update(dict.fromkeys(_ONE_CORE, "1"))
        try:
            self._process.start()
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        theirs.close()
        self._task: Task | None = None

    def take(self, task: Task) -> None:
        """Begins with a run."""
        self._task = task
        self.pipe.send_bytes(msgspec.msgpack.encode(task))

    def answer(self) -> Done:
        """What became of its run."""
        assert self._task is not None
        try:
            return msgspec.msgpack.decode(self.pipe.recv_bytes(), type=Done)
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode or 0
            how = (
                f"was killed by signal {-code} (9: there may be too little memory)"
                if code < 0
                else f"ended with {code}"
            )
            return Done(self._task.key, FAILED, f"its process {how}")

    def is_dead(self) -> bool:
        """Whether it can take no more."""
        return self._process.exitcode is not None

    def end(self) -> None:
        """Stops it, whatever it is doing: what it has written down is whole."""
        self._process.terminate()
        self._process.join()
        self.pipe.close()


def _serve(pipe: Connection, path: str) -> None:
    """The life of a process: one run after the other."""
    # Ctrl-C goes to everybody at the terminal; whoever began the sweep decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = Folder(path)
    # A user's policy may print what it likes, but stdout is for the result alone.
    with redirect_stdout(sys.stderr):
        while True:
            try:
                task = msgspec.msgpack.decode(pipe.recv_bytes(), type=Task)
            except EOFError:
                return
            pipe.send_bytes(msgspec.msgpack.encode(_run(task, folder)))


def _run(task: Task, folder: Folder) -> Done:
    try:
        outcome = run_one(task)
        folder.keep(task, outcome)
    except Exception as error:
        if os.environ.get("LEVADA_DEBUG"):
            raise
        # One run that fails, by whatever fault of a policy or ours, must not take the others with it.
        known = isinstance(error, LevadaError)
        return Done(task.key, FAILED, str(error) if known else f"{type(error).__name__}: {error}")
    return Done(task.key, outcome.row["status"])


def _end_with_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os._exit(1)
