"""What to tell whoever submits a job that is accepted, and that cannot start or will be late as things are."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

from levada.live.loop import Loop
from levada.live.views import moment

#: Jobs of one submission whose deadlines are compared with a forecast.
_MOST_JOBS = 100
#: With more jobs than this in the cluster a forecast would take longer than a submission should.
_MOST_LIVING = 5_000
#: How long an answer waits for it, forecasts of other submissions included.
_WAIT_S = 2.0

Forecast = Callable[[Sequence[int]], Awaitable[dict[int, dict[str, Any]]]]


class SubmitWarnings:
    """Adds `warnings` to the views of jobs that were just submitted, where there are any."""

    def __init__(self, loop: Loop, forecast: Forecast) -> None:
        self._loop, self._forecast = loop, forecast
        #: One forecast at a time: the processor is there for decisions.
        self._one = asyncio.Lock()

    async def added(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same jobs, some of them with `warnings`."""
        query = self._loop.engine.query
        told: dict[str, str] = {}
        deadlines: dict[int, tuple[str, float]] = {}
        for job in jobs:
            found = query.job(job["id"])
            if found is None or job["finished"] is not None:
                continue
            if why := query.why_never(found.number):
                told[job["id"]] = why
            elif found.deadline < math.inf:
                deadlines[found.number] = job["id"], found.deadline
        if 0 < len(deadlines) <= _MOST_JOBS and len(query.jobs) <= _MOST_LIVING:
            told |= await self._late(deadlines)
        return [{**job, "warnings": [told[job["id"]]]} if job["id"] in told else job for job in jobs]

    async def _looked_ahead(self, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
        """The forecast. One that nobody waits for any more runs on, since a thread cannot be ended: the next waits."""
        await self._one.acquire()
        task = asyncio.ensure_future(self._forecast(numbers))
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Future[dict[int, dict[str, Any]]]) -> None:
        self._one.release()
        if not task.cancelled():
            task.exception()  # whoever waited has it

    async def _late(self, deadlines: dict[int, tuple[str, float]]) -> dict[str, str]:
        try:
            async with asyncio.timeout(_WAIT_S):
                soon = await self._looked_ahead(list(deadlines))
        except TimeoutError:
            return {}
        found: dict[str, str] = {}
        for number, (job, deadline) in deadlines.items():
            times = soon.get(number, {})
            # What is not known is no reason for a warning.
            for what in ("ends", "starts"):
                at = times.get(what)
                if at is not None and (late_s := datetime.fromisoformat(at).timestamp() - deadline) > 0:
                    found[job] = (
                        f"Will miss its deadline {moment(deadline)}: "
                        f"expected to {what[:-1]} {_span(late_s)} later, at {at}."
                    )
                    break
        return found


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{round(minutes / 60)} h"
