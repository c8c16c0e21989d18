"""Requests about the past: events, decisions, plans, engine faults, usage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec

from levada.api.types import (
    DecisionCountView,
    DecisionView,
    EngineFaultView,
    EventView,
    PlanView,
    UsageView,
)
from levada.errors import BadInput, NotFound
from levada.live import views
from levada.live.loop import Loop
from levada.live.store import HistoryLine

_BY = ("user", "queue", "workload", "gpu_type")


class HistoryService:
    """Reads events, decisions, plans, engine faults and usage."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    async def events(self, *, job: str | None, after: int, limit: int) -> list[EventView]:
        """Return events after the id *after*, oldest first: `{"id", "time", "type", "job", "text", …}`.

        If retention has removed some of them, an event of type `gap` comes first; the client continues after its id.
        """
        wanted = None if job is None else self._loop.records.find(job).id
        gap = await self._gap(after)
        lines = [*gap, *await self._loop.store.history(job=wanted, after=after, limit=limit)]
        return [line_view(line) for line in lines[:limit]]

    async def watch(self, *, after: int | None, job: str | None) -> AsyncIterator[EventView]:
        """Stream the same events as they happen, complete after *after* except for a `gap`; None starts now."""
        wanted = None if job is None else self._loop.records.find(job).id
        for line in await self._gap(after or 0):
            yield line_view(line)
            after = line.id
        async for line in self._loop.broadcast.watch(after):
            if wanted is None or line.job == wanted:
                yield line_view(line)

    async def _gap(self, after: int) -> list[HistoryLine]:
        """Return a `gap` event if events after *after* were removed; never for a client that starts at 0."""
        if not 0 < after < self._loop.broadcast.last:
            return []
        first = await self._loop.store.first_history() or self._loop.broadcast.last + 1
        if after + 1 >= first:
            return []
        text = f"Events up to {first - 1} were removed by retention: read the current state, then continue from here."
        return [HistoryLine(id=first - 1, at=self._loop.clock.now(), job=None, type="gap", text=text)]

    def last_event(self) -> int:
        """Return the id of the newest event; 0 before the first."""
        return self._loop.broadcast.last

    def decisions(self, limit: int) -> list[DecisionView]:
        """Return the last decisions, newest last."""
        return self._loop.decision_history.last(limit, self._loop.engine.query, self._loop.records)

    def decision(self, revision: int) -> DecisionView:
        """Return one decision with its reasons; NotFound if it is no longer stored."""
        decision = self._loop.decision_history.find(revision, self._loop.engine.query, self._loop.records)
        if decision is None:
            raise NotFound(f"there is no decision {revision}; `levada decisions ls` lists the stored ones")
        return decision

    def decision_tally(self) -> list[DecisionCountView]:
        """Count decisions per policy since the start: `{"policy", "made", "failed", "seconds"}`."""
        return [
            {"policy": policy, "made": made, "failed": failed, "seconds": seconds}
            for policy, (made, failed, seconds) in self._loop.decision_history.tally.items()
        ]

    def faults(self) -> list[EngineFaultView]:
        """Return the last faults of the engine, newest last."""
        return self._loop.faults.views()

    def fault_tally(self) -> dict[str, int]:
        """Count faults of the engine since the server started, by kind."""
        return dict(self._loop.faults.counts)

    def plans(self, limit: int) -> list[PlanView]:
        """Return the last plans, newest last."""
        return self._loop.plans[-limit:]

    async def usage(self, by: list[str], since: float) -> list[UsageView]:
        """Sum GPU seconds of jobs that ran since *since* (unix time), by user, queue, workload or gpu_type."""
        unknown = [name for name in by if name not in _BY]
        if unknown or not by:
            raise BadInput.one(f"must be one or more of {', '.join(_BY)}", "by")
        rows = await self._loop.store.results(since)
        jobs: list[Any] = [msgspec.json.decode(result) for _, result in rows]
        records = self._loop.records.by_id.values()
        jobs += [self._loop.view(record, positions={}) for record in records if record.result is None]
        sums: dict[tuple[str, ...], dict[str, float]] = {}
        for job in jobs:
            key = tuple(str(job[name] if job[name] is not None else "-") for name in by)
            group = sums.setdefault(key, {"jobs": 0, "gpu_seconds": 0.0, "running_s": 0.0, "waiting_s": 0.0})
            group["jobs"] += 1
            for name in ("gpu_seconds", "running_s", "waiting_s"):
                group[name] += job[name]
        usage = [cast(UsageView, {**dict(zip(by, key, strict=True)), **amounts}) for key, amounts in sums.items()]
        return sorted(usage, key=lambda row: -row["gpu_seconds"])


def line_view(line: HistoryLine) -> EventView:
    """Convert a history line to the JSON of the API."""
    head = {"id": line.id, "time": views.moment(line.at), "type": line.type, "job": line.job, "text": line.text}
    return cast(EventView, {**line.data, **head})
