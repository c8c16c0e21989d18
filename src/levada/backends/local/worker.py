"""One worker process of this machine: start, status, termination and exit.

Each worker has a task that retries what the machine refuses, e.g. because no file handles are left.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from levada.backends.local import processes, procfs, shim, worker_files
from levada.backends.local.processes import ProcessState
from levada.backends.local.supervisor_protocol import ENDED, LOST, RUNS, STARTING, WorkerStatus

_log = logging.getLogger(__name__)
#: Period of checks for a shim that an earlier supervisor may have started.
_LOOK_S = 0.05
#: Processes that a lost worker left are killed within this time, or reported.
_SWEEP_S = 2.0
#: Pause before a failed system call is retried.
_AGAIN_S = 1.0
#: A started shim takes its lock within this time.
_START_S = 5.0
#: A shim that does nothing for this time after its worker has ended is killed.
_IDLE_S = 10.0


class Worker:
    """A worker and the task that watches it.

    *on_change* gets every new status, and whether it is urgent.
    """

    __slots__ = (
        *("_asked", "_idle_since", "_leave_pending", "_on_change", "_rechecked", "_report"),
        *("child", "folder", "status", "task"),
    )

    def __init__(self, folder: Path, status: WorkerStatus, on_change: Callable[[WorkerStatus, bool], None]) -> None:
        self.folder, self.status = folder, status
        self._report, self._on_change = str(folder / worker_files.REPORT), on_change
        #: The worker must leave, but its shim could not be signalled yet: it may just be starting.
        self._leave_pending = False
        #: The worker was asked to leave while it lived.
        self._asked = False
        #: Since when the worker has ended while its shim has not.
        self._idle_since: float | None = None
        self._rechecked = False
        self.task: asyncio.Task[None] | None = None
        self.child: subprocess.Popen[bytes] | None = None

    def start(self, spec: processes.WorkerSpec) -> None:
        """Start the worker and watch it."""
        self.task = asyncio.create_task(self._launch(spec))

    def take_over(self) -> None:
        """Watch a worker that an earlier supervisor started."""
        if self.status.state == STARTING:
            self.task = asyncio.create_task(self._await_start())
        elif self.status.state in (RUNS, LOST) or processes.reaper_lives(self.folder):
            self.task = asyncio.create_task(self._watch())

    def end(self, *, at_once: bool) -> None:
        """Ask the worker to leave, or kill it *at_once*."""
        if not self.status.alive:
            return
        if not at_once:
            self._ask_to_leave()
        elif not processes.kill(self.folder):
            if self.status.state == RUNS:
                self.recheck()
            elif self.child is not None:
                processes.kill_start(self.child)

    def _ask_to_leave(self) -> None:
        lives = not self._has_ended()
        self._leave_pending = not processes.ask_to_leave(self.folder)
        self._asked |= lives and not self._leave_pending

    def _has_ended(self) -> bool:
        """Whether the worker's process is known and has ended, reaped or not."""
        process = None if self.status.pid is None else procfs.look(self.status.pid)
        return self.status.pid is not None and (process is None or process.is_zombie)

    def poll(self) -> None:
        """Check whether the worker runs and read its report; raises OSError."""
        if self._leave_pending:
            self._ask_to_leave()
        if self.status.state == STARTING:
            process = processes.inspect(self.folder)
            if process.state is ProcessState.RUNS and process.pid is not None:
                self._update(state=RUNS, pid=process.pid)
        reading = worker_files.read_report(self._report)
        if reading is not None and reading != self.status.reading:
            self._update(reading=reading)

    def check_shim(self) -> None:
        """Resume a shim that was stopped when its worker ended; kill one that then still does nothing.

        Otherwise the end of the worker is never seen and its GPUs never become free. Raises OSError.
        """
        if self.status.state != RUNS or self.status.pid is None:
            return
        if not self._has_ended():
            self._idle_since = None
            return
        now = time.monotonic()
        self._idle_since = self._idle_since or now
        idle = processes.idle_shim(self.folder)
        if idle is None:
            # The shim has ended, too, and its reaper may be stopped. One recheck is enough, since an end takes time.
            if not self._rechecked:
                self._rechecked = True
                self.recheck()
        elif now - self._idle_since >= _IDLE_S and (idle.is_stopped or idle.code is not None):
            processes.end_idle_shim(self.folder, idle, asked=self._asked)
        elif idle.is_stopped:
            processes.resume(self.folder)

    def recheck(self) -> None:
        """Restart the watching task if it has ended or missed the worker's end, which would keep its GPUs."""
        unwatched = self.task is None or self.task.done()
        if not unwatched and self.status.state == RUNS:
            with contextlib.suppress(OSError):
                unwatched = processes.inspect(self.folder).state in (ProcessState.ENDED, ProcessState.LOST)
        if unwatched:
            _log.info("restarting watch of worker %s of %s", self.status.name, self.status.job)
            if self.task is not None:
                self.task.cancel()
            self.task = asyncio.create_task(self._watch())

    def _update(self, **changes: object) -> None:
        self.status = msgspec.structs.replace(self.status, **changes)
        self._on_change(self.status, "state" in changes)

    # --- task -------------------------------------------------------------------------------------------------------

    async def _launch(self, spec: processes.WorkerSpec) -> None:
        starting = asyncio.ensure_future(asyncio.to_thread(processes.start, self.folder, spec))
        try:
            self.child = await asyncio.shield(starting)
        except asyncio.CancelledError:
            self.child = await starting  # the thread goes on, and its child must be reaped
            raise
        except OSError as error:
            self._update(state=LOST, why=f"could not be started: {error}")
            return
        await self._watch()

    async def _await_start(self) -> None:
        """Wait for a shim that an earlier supervisor may have just started; after 5 s prevent its start."""
        until = time.monotonic() + _START_S
        while True:
            try:
                if processes.inspect(self.folder).state is not ProcessState.ABSENT:
                    break
                if time.monotonic() > until and processes.prevent_start(self.folder):
                    self._update(state=LOST, why="was never started")
                    return
            except OSError as error:
                _log.warning("retrying search for worker %s of %s: %s", self.status.name, self.status.job, error)
                await asyncio.sleep(_AGAIN_S)
            await asyncio.sleep(_LOOK_S)
        await self._watch()

    async def _watch(self) -> None:
        """Wait for the worker's end; system errors are logged and retried."""
        logged = ""
        while True:
            try:
                await self._await_end()
                return
            except OSError as error:
                if str(error) != logged:
                    logged = str(error)
                    _log.warning("retrying watch of worker %s of %s: %s", self.status.name, self.status.job, error)
            await asyncio.sleep(_AGAIN_S)

    async def _await_end(self) -> None:
        # A dead shim may have a stopped reaper, which only `wait_ended` kills.
        if self.child is not None and processes.inspect(self.folder).state not in (
            ProcessState.ENDED,
            ProcessState.LOST,
        ):
            code = await processes.wait_reaped(self.child)
            self.child = None
            if code == shim.NO_RECORD:
                self._update(state=LOST, why="could not write to its directory; is the disk full?")
                return
        process = await processes.wait_ended(self.folder, self.child)
        self.child = None
        if process.state is ProcessState.ENDED:
            reading = worker_files.read_report(self._report)
            self._update(state=ENDED, pid=process.pid, code=process.code, asked=process.asked, reading=reading)
            return
        left = await self._kill_leftovers()
        why = "was lost: its shim was killed"
        if left:
            pids = ", ".join(map(str, sorted(left)))
            why += f", and processes it left on {os.uname().nodename} cannot be killed: {pids}"
            _log.warning("worker lost: %s of %s: it %s", self.status.name, self.status.job, why)
        self._update(state=LOST, why=why)

    async def _kill_leftovers(self) -> list[int]:
        """Kill processes that the worker's reaper did not; returns those that survive."""
        marks = {"LEVADA_STATE_DIR": str(self.folder)}
        until = time.monotonic() + _SWEEP_S
        while left := await asyncio.to_thread(processes.kill_marked, marks):
            if time.monotonic() > until:
                break
            await asyncio.sleep(0.02)
        return left


def find_status(job: str, folder: Path) -> WorkerStatus:
    """The status of a worker that an earlier supervisor started in *folder*; raises OSError."""
    process = processes.inspect(folder)
    state = {
        ProcessState.ABSENT: STARTING,
        ProcessState.RUNS: RUNS,
        ProcessState.ENDED: ENDED,
        ProcessState.LOST: LOST,
    }[process.state]
    if state == RUNS and process.pid is None:
        state = STARTING
    if state == ENDED and process.code is None:
        state = LOST
    return WorkerStatus(
        job=job,
        name=folder.name,
        state=state,
        pid=process.pid,
        code=process.code,
        asked=process.asked,
        reading=worker_files.read_report(folder / worker_files.REPORT),
    )
