"""Execute runs in several processes, each taking the next run when free.

A process that dies fails only its own run. When the parent is gone, even killed, the processes exit.
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
from levada.sim.sweep.plan import Task
from levada.sim.sweep.run import run_one

FAILED = "failed"
#: Each process uses one core: these variables limit libraries that would use all.
_ONE_CORE = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS")


class Done(msgspec.Struct, frozen=True):
    """A run ended: `finished`, `saturated` or `failed`; *text* is the error of a failed run."""

    key: str
    status: str
    text: str = ""


def work(tasks: list[Task], folder: Folder, processes: int) -> Iterator[Done]:
    """Execute all tasks, *processes* at a time, and yield each end. Closing the iterator stops running tasks."""
    # Large runs first, so that no long run is left at the end. Results do not depend on the order.
    todo = sorted(tasks, key=lambda task: (-(task.settings.rate or 0.0), -(task.settings.jobs or 0)))
    todo.reverse()
    workers: list[_Worker] = []
    try:
        while todo or workers:
            while todo and len(workers) < processes:
                worker = _Worker(folder)
                workers.append(worker)
                worker.start(todo.pop())
            ready = wait([worker.pipe for worker in workers])
            for worker in [busy for busy in workers if busy.pipe in ready]:
                yield worker.result()
                if worker.is_dead() or not todo:
                    workers.remove(worker)
                    worker.terminate()
                else:
                    worker.start(todo.pop())
    finally:
        for worker in workers:
            worker.terminate()


class _Worker:
    """A process that executes runs."""

    def __init__(self, folder: Folder) -> None:
        # Not a fork, which would copy threads and locks of this process.
        context = multiprocessing.get_context("spawn")
        self.pipe, child_pipe = context.Pipe()
        self._process = context.Process(target=_serve, args=(child_pipe, str(folder.path)), daemon=True)
        before = {name: os.environ.get(name) for name in _ONE_CORE}
        os.environ.update(dict.fromkeys(_ONE_CORE, "1"))
        try:
            self._process.start()
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
        child_pipe.close()
        self._task: Task | None = None

    def start(self, task: Task) -> None:
        """Start a run."""
        self._task = task
        self.pipe.send_bytes(msgspec.msgpack.encode(task))

    def result(self) -> Done:
        """Return the end of its run; blocks until then."""
        assert self._task is not None
        try:
            return msgspec.msgpack.decode(self.pipe.recv_bytes(), type=Done)
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode or 0
            how = (
                f"was killed by signal {-code} (9: possibly out of memory)" if code < 0 else f"exited with code {code}"
            )
            return Done(self._task.key, FAILED, f"process {how}")

    def is_dead(self) -> bool:
        """Return whether the process has exited."""
        return self._process.exitcode is not None

    def terminate(self) -> None:
        """Terminate the process; files are written atomically, so none is partial."""
        self._process.terminate()
        self._process.join()
        self.pipe.close()


def _serve(pipe: Connection, path: str) -> None:
    """Main function of a process: execute one run after the other."""
    # Ctrl-C reaches all processes of the terminal; the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = Folder(path)
    # A user's policy may print; stdout is reserved for the result.
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
        folder.save(task, outcome)
    except Exception as error:
        if os.environ.get("LEVADA_DEBUG"):
            raise
        # A bug in one run must not stop the others.
        expected = isinstance(error, LevadaError)
        return Done(task.key, FAILED, str(error) if expected else f"{type(error).__name__}: {error}")
    return Done(task.key, outcome.row["status"])


def _end_with_parent() -> None:
    parent: Any = multiprocessing.parent_process()
    parent.join()
    os._exit(1)
