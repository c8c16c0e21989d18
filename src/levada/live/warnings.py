"""Warnings: jobs that run and get nowhere, and jobs whose GPUs do nothing.

What is looked at comes in as plain values, and what to say comes out: `Standstill` and `Idleness` have no clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from levada.backends.protocol import Note, Report
from levada.core.job import Phase
from levada.live.loop import Loop

_log = logging.getLogger(__name__)

#: A job is stuck after so long without a step, unless somebody says otherwise.
STUCK_AFTER_S = 1800.0
#: GPUs below this use (in percent) do nothing.
IDLE_PERCENT = 5.0
#: So often it is looked in the time after which something is worth a warning, and no more often than this.
_LOOKS, _LOOK_S = 20, 30.0


class Running(NamedTuple):
    """A job that has all its workers."""

    job: str
    #: Since when it has had them.
    since: float
    steps: float
    #: Ids of its GPUs.
    devices: tuple[str, ...] = ()


class Standstill:
    """Jobs that have made steps, and make none any more."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        #: By job: steps, since when it has them, and whether its standstill was told.
        self._known: dict[str, tuple[float, float, bool]] = {}

    def look(self, running: Iterable[Running], now: float) -> list[Note]:
        """A warning for each job that has stood still for so long; once, until it moves again."""
        notes: list[Note] = []
        known: dict[str, tuple[float, float, bool]] = {}
        for one in running:
            steps, since, told = self._known.get(one.job, (one.steps, now, False))
            if steps != one.steps:
                steps, since, told = one.steps, now, False
            # A job that has just been resized gets its time anew.
            still_s = now - max(since, one.since)
            if steps > 0 and not told and still_s >= self._after_s:
                told = True
                text = (
                    f"It has made no step for {_minutes(still_s)}, at step {steps:g}. "
                    f"Look at its output (levada logs {one.job}); levada suspend and resume start it again."
                )
                notes.append(Note(job=one.job, type="warning", text=text, data={"warning": "stuck", "step": steps}))
            known[one.job] = (steps, since, told)
        self._known = known
        return notes


class Idleness:
    """Jobs none of whose GPUs does anything."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        #: By job: since when all its GPUs are idle, and whether that was told.
        self._known: dict[str, tuple[float, bool]] = {}

    def look(self, running: Iterable[Running], use: Mapping[str, float], now: float) -> list[Note]:
        """A warning for each job whose GPUs were idle for so long; once, until one of them works again.

        *use* is in percent, by the GPU's id; a job with a GPU that nobody could ask is left alone.
        """
        notes: list[Note] = []
        known: dict[str, tuple[float, bool]] = {}
        for one in running:
            found = [use.get(device, 100.0) for device in one.devices]
            if not found or max(found) >= IDLE_PERCENT:
                continue
            since, told = self._known.get(one.job, (now, False))
            idle_s = now - max(since, one.since)
            if not told and idle_s >= self._after_s:
                told = True
                gpus = "Its GPU has" if len(found) == 1 else f"All of its {len(found)} GPUs have"
                text = (
                    f"{gpus} been idle (below {IDLE_PERCENT:g} % use) for {_minutes(idle_s)}. "
                    "If it waits for data, fewer or smaller GPUs would do; if it hangs, cancel it."
                )
                notes.append(Note(job=one.job, type="warning", text=text, data={"warning": "idle"}))
            known[one.job] = (since, told)
        self._known = known
        return notes


class Warnings:
    """Looks at the jobs of a running server from time to time."""

    def __init__(self, loop: Loop, after_s: float, gpu_use: Callable[[], Mapping[str, float]] | None = None) -> None:
        """*after_s* 0: no warnings. *gpu_use* asks this machine's GPUs; it may take its time."""
        self._loop, self._after_s, self._gpu_use = loop, after_s, gpu_use
        self._standstill, self._idleness = Standstill(after_s), Idleness(after_s)

    async def run(self) -> None:
        """Until it is cancelled."""
        if not self._after_s:
            return
        while True:
            await asyncio.sleep(min(_LOOK_S, self._after_s / _LOOKS))
            await self.look()

    async def look(self) -> None:
        """Tells what there is to be warned of."""
        now = self._loop.clock.now()
        running = list(self._running())
        notes = self._standstill.look(running, now)
        if self._gpu_use is not None:
            use = await asyncio.to_thread(self._gpu_use)
            notes += self._idleness.look(running, use, now)
        if notes:
            for note in notes:
                _log.warning("%s: %s", note.job, note.text)
            self._loop.hear(Report(notes=tuple(notes)))

    def _running(self) -> Iterable[Running]:
        query = self._loop.engine.query
        for record in self._loop.records.by_number.values():
            job = query.job(record.id)
            if job is None or job.phase != Phase.RUNNING:
                continue
            devices: tuple[str, ...] = ()
            if self._gpu_use is not None:
                places = query.held_grant(job.number).places
                devices = tuple(sorted({device for place in places for device in place.devices}))
            yield Running(record.id, job.resized, job.steps_done, devices)


def _minutes(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
