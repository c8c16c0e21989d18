"""One worker of this machine, from its start to its end: what is seen of it, whatever the machine would not do."""

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

from levada.backends.local import files, processes, procfs, shim
from levada.backends.local.messages import ENDED, LOST, RUNS, STARTING, Sighting
from levada.backends.local.processes import State

_log = logging.getLogger(__name__)
#: How often a start that somebody else may have begun is looked for.
_LOOK_S = 0.05
#: What a lost worker has left is ended within so long, or people are told.
_SWEEP_S = 2.0
#: After that long it is tried again what the machine would not do, as when it has no file handles left.
_AGAIN_S = 1.0
#: A shim that was started takes its lock within so long.
_START_S = 5.0
#: A guard whose worker has ended, and that does nothing about it for so long, is killed.
_IDLE_S = 10.0


class Worker:
    """Watched by a task of its own. *note* hears what is seen of it, and whether that cannot wait."""

    __slots__ = (
        *("_asked", "_doubted", "_idle_since", "_leave", "_note", "_report"),
        *("child", "folder", "seen", "task"),
    )

    def __init__(self, folder: Path, seen: Sighting, note: Callable[[Sighting, bool], None]) -> None:
        self.folder, self.seen = folder, seen
        self._report, self._note = str(folder / files.REPORT), note
        #: It shall leave, and has not been told: its shim may just be starting.
        self._leave = False
        #: It was asked to leave while it lived.
        self._asked = False
        #: Since when its process has ended and its guard has not.
        self._idle_since: float | None = None
        self._doubted = False
        self.task: asyncio.Task[None] | None = None
        self.child: subprocess.Popen[bytes] | None = None

    def start(self, spec: processes.Spec) -> None:
        """Starts it, and watches it from then on."""
        self.task = asyncio.create_task(self._launch(spec))

    def take_over(self) -> None:
        """Watches one that somebody else has started."""
        if self.seen.state == STARTING:
            self.task = asyncio.create_task(self._await_start())
        elif self.seen.state in (RUNS, LOST) or processes.keeper_lives(self.folder):
            self.task = asyncio.create_task(self._watch())

    def end(self, *, at_once: bool) -> None:
        """Asks it to leave, or ends it."""
        if not self.seen.alive:
            return
        if not at_once:
            self._ask_to_leave()
        elif not processes.kill(self.folder):
            if self.seen.state == RUNS:
                self.doubt()
            elif self.child is not None:
                processes.kill_start(self.child)

    def _ask_to_leave(self) -> None:
        lives = not self._has_ended()
        self._leave = not processes.ask_to_leave(self.folder)
        self._asked |= lives and not self._leave

    def _has_ended(self) -> bool:
        """Whether its process is known, and has ended, reaped or not."""
        process = None if self.seen.pid is None else procfs.look(self.seen.pid)
        return self.seen.pid is not None and (process is None or process.is_zombie)

    def look(self) -> None:
        """Sees whether it has begun, and what it reports; raises OSError."""
        if self._leave:
            self._ask_to_leave()
        if self.seen.state == STARTING:
            standing = processes.standing(self.folder)
            if standing.state is State.RUNS and standing.pid is not None:
                self._see(state=RUNS, pid=standing.pid)
        reading = files.read_report(self._report)
        if reading is not None and reading != self.seen.reading:
            self._see(reading=reading)

    def check_guard(self) -> None:
        """Lets a guard go on that was frozen when its worker ended, and kills one that still does nothing.

        Raises OSError. Else the end is never seen, and the GPUs are never free.
        """
        if self.seen.state != RUNS or self.seen.pid is None:
            return
        if not self._has_ended():
            self._idle_since = None
            return
        now = time.monotonic()
        self._idle_since = self._idle_since or now
        idle = processes.idle_shim(self.folder)
        if idle is None:
            # Its guard has ended, too, and perhaps its keeper is frozen: once is enough, since an end takes time.
            if not self._doubted:
                self._doubted = True
                self.doubt()
        elif now - self._idle_since >= _IDLE_S and (idle.is_stopped or idle.code is not None):
            processes.end_idle_shim(self.folder, idle, asked=self._asked)
        elif idle.is_stopped:
            processes.thaw(self.folder)

    def doubt(self) -> None:
        """Watches it anew where it has ended or nobody watches: an end that is never seen keeps its GPUs."""
        unwatched = self.task is None or self.task.done()
        if not unwatched and self.seen.state == RUNS:
            with contextlib.suppress(OSError):
                unwatched = processes.standing(self.folder).state in (State.ENDED, State.LOST)
        if unwatched:
            _log.info("%s of %s is watched anew", self.seen.name, self.seen.job)
            if self.task is not None:
                self.task.cancel()
            self.task = asyncio.create_task(self._watch())

    def _see(self, **changes: object) -> None:
        self.seen = msgspec.structs.replace(self.seen, **changes)
        self._note(self.seen, "state" in changes)

    # --- its task ---------------------------------------------------------------------------------------------------

    async def _launch(self, spec: processes.Spec) -> None:
        starting = asyncio.ensure_future(asyncio.to_thread(processes.start, self.folder, spec))
        try:
            self.child = await asyncio.shield(starting)
        except asyncio.CancelledError:
            self.child = await starting  # it goes on all the same, and somebody must reap it
            raise
        except OSError as broken:
            self._see(state=LOST, why=f"could not be started: {broken}")
            return
        await self._watch()

    async def _await_start(self) -> None:
        """Whoever was before may have started a shim just now; if not, nobody shall do so any more."""
        until = time.monotonic() + _START_S
        while True:
            try:
                if processes.standing(self.folder).state is not State.ABSENT:
                    break
                if time.monotonic() > until and processes.bar(self.folder):
                    self._see(state=LOST, why="was never started")
                    return
            except OSError as trouble:
                _log.warning("%s of %s is looked for again: %s", self.seen.name, self.seen.job, trouble)
                await asyncio.sleep(_AGAIN_S)
            await asyncio.sleep(_LOOK_S)
        await self._watch()

    async def _watch(self) -> None:
        """Until it has ended, whatever the machine would not do meanwhile."""
        told = ""
        while True:
            try:
                await self._see_end()
                return
            except OSError as trouble:
                if str(trouble) != told:
                    told = str(trouble)
                    _log.warning("%s of %s is watched again: %s", self.seen.name, self.seen.job, trouble)
            await asyncio.sleep(_AGAIN_S)

    async def _see_end(self) -> None:
        # Whose shim is gone may have a keeper that is frozen, which ends only with help.
        if self.child is not None and processes.standing(self.folder).state not in (State.ENDED, State.LOST):
            code = await processes.reaped(self.child)
            self.child = None
            if code == shim.NO_RECORD:
                self._see(state=LOST, why="no record could be kept in its folder; is the disk full?")
                return
        standing = await processes.ended(self.folder, self.child)
        self.child = None
        if standing.state is State.ENDED:
            reading = files.read_report(self._report)
            self._see(state=ENDED, pid=standing.pid, code=standing.code, asked=standing.asked, reading=reading)
            return
        left = await self._sweep()
        why = "was lost: its guard was killed"
        if left:
            pids = ", ".join(map(str, sorted(left)))
            why += f", and what it left on {os.uname().nodename} cannot be ended: look at process {pids}"
            _log.warning("%s of %s: %s", self.seen.name, self.seen.job, why)
        self._see(state=LOST, why=why)

    async def _sweep(self) -> list[int]:
        """Nothing that a lost worker started may be left when its devices are free again; what is all the same."""
        marks = {"LEVADA_STATE_DIR": str(self.folder)}
        until = time.monotonic() + _SWEEP_S
        while left := await asyncio.to_thread(processes.sweep, marks):
            if time.monotonic() > until:
                break
            await asyncio.sleep(0.02)
        return left


def sighting(job: str, folder: Path) -> Sighting:
    """How a worker is found that was here before; raises OSError."""
    standing = processes.standing(folder)
    state = {State.ABSENT: STARTING, State.RUNS: RUNS, State.ENDED: ENDED, State.LOST: LOST}[standing.state]
    if state == RUNS and standing.pid is None:
        state = STARTING
    if state == ENDED and standing.code is None:
        state = LOST
    return Sighting(
        job=job,
        name=folder.name,
        state=state,
        pid=standing.pid,
        code=standing.code,
        asked=standing.asked,
        reading=files.read_report(folder / files.REPORT),
    )
