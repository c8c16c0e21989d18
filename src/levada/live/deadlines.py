"""Warnings for jobs that are still active when their deadline passes."""

from __future__ import annotations

import asyncio
import logging

from levada.backends.protocol import Note, Report
from levada.live import views
from levada.live.loop import Loop

_log = logging.getLogger(__name__)

#: Seconds between two checks.
_CHECK_S = 1.0
#: Limit for reading all history lines of one job.
_ALL_LINES = 1_000_000
_KIND = "deadline"


class Deadlines:
    """Checks the deadlines of active jobs every second; warns once per missed deadline."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._warned: set[str] = set()

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(_CHECK_S)

    async def check(self) -> None:
        """Write a warning for each newly missed deadline."""
        jobs, now, by_number = self._loop.engine.query.jobs, self._loop.clock.now(), self._loop.records.by_number
        slots = jobs.order[jobs.deadline[jobs.order] <= now]
        late = dict(zip(jobs.number[slots].tolist(), jobs.deadline[slots].tolist(), strict=True))
        missed = {by_number[number].id: at for number, at in late.items() if number in by_number}
        notes = []
        for job, at in missed.items():
            if job not in self._warned and not await self._is_in_history(job):
                text = (
                    f"Missed its deadline ({views.moment(at)}); it keeps running. "
                    f"`levada cancel {job}` ends it; a higher priority may make it faster."
                )
                notes.append(Note(job=job, type="warning", text=text, data={"warning": _KIND}))
                _log.warning("deadline missed: %s: %s", job, text)
        self._warned = set(missed)
        if notes:
            self._loop.observe(Report(notes=tuple(notes)))

    async def _is_in_history(self, job: str) -> bool:
        """Whether a previous server has warned already."""
        lines = await self._loop.store.history(job=job, after=0, limit=_ALL_LINES)
        return any(line.data.get("warning") == _KIND for line in lines)
