"""Warnings for running jobs without progress or with idle GPUs.

`StuckJobDetector` and `IdleJobDetector` are pure: plain values and the time go in, notes come out.
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

#: Default time without a step after which a job is stuck.
STUCK_AFTER_S = 1800.0
#: GPUs below this utilization (percent) are idle.
IDLE_PERCENT = 5.0
#: Checks per warning interval, and the longest time between two checks.
_CHECKS, _MAX_CHECK_S = 20, 30.0


class WarningOptions(NamedTuple):
    """When jobs get warnings."""

    #: Seconds without a step, or with idle GPUs, before a warning; 0 for no warnings.
    after_s: float = STUCK_AFTER_S
    #: Reads the utilization of this machine's GPUs by id; runs in a thread. None: idle GPUs get no warning.
    gpu_use: Callable[[], Mapping[str, float]] | None = None


class RunningJob(NamedTuple):
    """A job that has all its workers."""

    job: str
    #: Time of the last start or resize.
    since: float
    steps: float
    #: Ids of its GPUs.
    devices: tuple[str, ...] = ()


class StuckJobDetector:
    """Detects jobs that have made steps and make none any more."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        #: By job: steps, time of the last step, whether a warning was written.
        self._known: dict[str, tuple[float, float, bool]] = {}

    def check(self, running: Iterable[RunningJob], now: float) -> list[Note]:
        """Return a warning per job without a step for `after_s` seconds; once, until it makes a step again."""
        notes: list[Note] = []
        known: dict[str, tuple[float, float, bool]] = {}
        for job in running:
            steps, since, warned = self._known.get(job.job, (job.steps, now, False))
            if steps != job.steps:
                steps, since, warned = job.steps, now, False
            # A resize restarts the interval.
            still_s = now - max(since, job.since)
            if steps > 0 and not warned and still_s >= self._after_s:
                warned = True
                text = (
                    f"No step for {_minutes(still_s)}, at step {steps:g}. See its output (`levada logs {job.job}`). "
                    "`levada suspend` and `levada resume` restart it."
                )
                notes.append(Note(job=job.job, type="warning", text=text, data={"warning": "stuck", "step": steps}))
            known[job.job] = (steps, since, warned)
        self._known = known
        return notes


class IdleJobDetector:
    """Detects jobs whose GPUs are all idle."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        #: By job: time since which all its GPUs are idle, whether a warning was written.
        self._known: dict[str, tuple[float, bool]] = {}

    def check(self, running: Iterable[RunningJob], use: Mapping[str, float], now: float) -> list[Note]:
        """Return a warning per job whose GPUs were idle for `after_s` seconds; once, until one is busy again.

        *use*: percent by GPU id; a GPU without a value counts as busy.
        """
        notes: list[Note] = []
        known: dict[str, tuple[float, bool]] = {}
        for job in running:
            utilization = [use.get(device, 100.0) for device in job.devices]
            if not utilization or max(utilization) >= IDLE_PERCENT:
                continue
            since, warned = self._known.get(job.job, (now, False))
            idle_s = now - max(since, job.since)
            if not warned and idle_s >= self._after_s:
                warned = True
                gpus = "Its GPU has" if len(utilization) == 1 else f"All of its {len(utilization)} GPUs have"
                text = (
                    f"{gpus} been idle (below {IDLE_PERCENT:g} % utilization) for {_minutes(idle_s)}. "
                    "If it waits for data, fewer or smaller GPUs would do; if it hangs, cancel it."
                )
                notes.append(Note(job=job.job, type="warning", text=text, data={"warning": "idle"}))
            known[job.job] = (since, warned)
        self._known = known
        return notes


class Warnings:
    """Checks running jobs periodically and writes warnings to the history."""

    def __init__(self, loop: Loop, options: WarningOptions) -> None:
        self._loop, self._after_s, self._gpu_use = loop, options.after_s, options.gpu_use
        self._stuck, self._idle = StuckJobDetector(options.after_s), IdleJobDetector(options.after_s)

    async def run(self) -> None:
        """Check until cancelled."""
        if not self._after_s:
            return
        while True:
            await asyncio.sleep(min(_MAX_CHECK_S, self._after_s / _CHECKS))
            await self.check()

    async def check(self) -> None:
        """Write the warnings that are due now."""
        now = self._loop.clock.now()
        running = list(self._running())
        notes = self._stuck.check(running, now)
        if self._gpu_use is not None:
            use = await asyncio.to_thread(self._gpu_use)
            notes += self._idle.check(running, use, now)
        if notes:
            for note in notes:
                _log.warning("job warning: %s: %s", note.job, note.text)
            self._loop.observe(Report(notes=tuple(notes)))

    def _running(self) -> Iterable[RunningJob]:
        query = self._loop.engine.query
        for record in self._loop.records.by_number.values():
            job = query.job(record.id)
            if job is None or job.phase != Phase.RUNNING:
                continue
            devices: tuple[str, ...] = ()
            if self._gpu_use is not None:
                places = query.held_grant(job.number).places
                devices = tuple(sorted({device for place in places for device in place.devices}))
            yield RunningJob(record.id, job.resized, job.steps_done, devices)


def _minutes(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"
