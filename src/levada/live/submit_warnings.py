"""Warnings for submitted jobs that cannot start or will miss their deadline."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from datetime import datetime

from levada.api.types import ForecastView, JobView
from levada.live.forecast import forecast_in_thread
from levada.live.loop import Loop
from levada.live.views import moment

#: Deadlines of one submission that are forecast at most.
_MAX_DEADLINES = 100
#: With more active jobs than this a forecast takes too long for a submission.
_MAX_ACTIVE_JOBS = 5_000
#: A submission waits at most this long for its forecast, including forecasts of other submissions.
_WAIT_S = 2.0


class SubmitWarnings:
    """Adds `warnings` to the views of jobs that were just submitted."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        #: One forecast at a time: decisions need the processor.
        self._lock = asyncio.Lock()

    async def add_to(self, jobs: list[JobView]) -> list[JobView]:
        """Return the same jobs, with `warnings` where there are any."""
        query = self._loop.engine.query
        warnings: dict[str, str] = {}
        deadlines: dict[int, tuple[str, float]] = {}
        for view in jobs:
            job = query.job(view["id"])
            if job is None or view["finished"] is not None:
                continue
            if why := query.why_never(job.number):
                warnings[view["id"]] = why
            elif job.deadline < math.inf:
                deadlines[job.number] = view["id"], job.deadline
        if 0 < len(deadlines) <= _MAX_DEADLINES and len(query.jobs) <= _MAX_ACTIVE_JOBS:
            warnings |= await self._deadline_warnings(deadlines)
        return [{**view, "warnings": [warnings[view["id"]]]} if view["id"] in warnings else view for view in jobs]

    async def _forecast(self, numbers: Sequence[int]) -> dict[int, ForecastView]:
        """Forecast these jobs. A cancelled forecast keeps the lock until its thread ends, which cannot be stopped."""
        await self._lock.acquire()
        task = asyncio.ensure_future(forecast_in_thread(self._loop.engine, self._loop.clock.now(), numbers))
        task.add_done_callback(self._release)
        return await asyncio.shield(task)

    def _release(self, task: asyncio.Future[dict[int, ForecastView]]) -> None:
        self._lock.release()
        if not task.cancelled():
            task.exception()  # mark it as retrieved; the waiting caller raises it

    async def _deadline_warnings(self, deadlines: dict[int, tuple[str, float]]) -> dict[str, str]:
        try:
            async with asyncio.timeout(_WAIT_S):
                forecasts = await self._forecast(list(deadlines))
        except TimeoutError:
            return {}
        warnings: dict[str, str] = {}
        for number, (job, deadline) in deadlines.items():
            if (times := forecasts.get(number)) is None:
                continue
            # An unknown time is no reason for a warning.
            for verb, at in (("end", times["ends"]), ("start", times["starts"])):
                if at is not None and (late_s := datetime.fromisoformat(at).timestamp() - deadline) > 0:
                    warnings[job] = (
                        f"Will miss its deadline {moment(deadline)}: expected to {verb} {_span(late_s)} later, at {at}."
                    )
                    break
        return warnings


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{round(minutes / 60)} h"
