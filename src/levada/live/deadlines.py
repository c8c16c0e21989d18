"""Deadlines: what is told of a job that is not over when its deadline passes."""

from __future__ import annotations

import asyncio
import logging

from levada.backends.protocol import Note, Report
from levada.live import views
from levada.live.loop import Loop

_log = logging.getLogger(__name__)

#: How often it is looked.
_LOOK_S = 1.0
#: A job has fewer lines of history than this.
_ALL_LINES = 1_000_000
_KIND = "deadline"


class Deadlines:
    """Looks at the jobs of a running server from time to time; each missed deadline is told once."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._told: set[str] = set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Tells which deadlines have passed."""
        jobs, now, by_number = self._loop.engine.query.jobs, self._loop.clock.now(), self._loop.records.by_number
        slots = jobs.order[jobs.deadline[jobs.order] <= now]
        late = dict(zip(jobs.number[slots].tolist(), jobs.deadline[slots].tolist(), strict=True))
        missed = {by_number[number].id: at for number, at in late.items() if number in by_number}
        notes = []
        for job, at in missed.items():
            if job not in self._told and not await self._is_in_history(job):
                text = (
                    f"Its deadline ({views.moment(at)}) has passed, and it goes on all the same. "
                    f"levada cancel {job} ends it; a higher priority may make it faster."
                )
                notes.append(Note(job=job, type="warning", text=text, data={"warning": _KIND}))
                _log.warning("%s: %s", job, text)
        self._told = set(missed)
        if notes:
            self._loop.hear(Report(notes=tuple(notes)))

    async def _is_in_history(self, job: str) -> bool:
        """Whether a server before this one has told it."""
        lines = await self._loop.store.history(job=job, after=0, limit=_ALL_LINES)
        return any(line.data.get("warning") == _KIND for line in lines)
