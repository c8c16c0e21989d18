"""What happened, what was decided, and what was used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from levada.errors import BadInput, NotFound
from levada.live import views
from levada.live.loop import Loop
from levada.live.store import HistoryLine

_BY = ("user", "queue", "workload", "gpu_type")


class Past:
    """History, decisions and accounts, for `Service`."""

    loop: Loop

    async def history(self, *, job: str | None, after: int, limit: int) -> list[dict[str, Any]]:
        """Events after this id, oldest first: `{"id", "time", "type", "job", "text", …}`.

        Where some after it are no longer kept, an event of the type `gap` comes first: whoever gets it has missed
        something, and goes on after its id.
        """
        wanted = None if job is None else self.loop.records.find(job).id
        gap = await self._gap(after)
        lines = [*gap, *await self.loop.store.history(job=wanted, after=after, limit=limit)]
        return [line_view(line) for line in lines[:limit]]

    async def watch(self, *, after: int | None, job: str | None) -> AsyncIterator[dict[str, Any]]:
        """The same events as they come, none missing after *after* but for a `gap`; None begins now."""
        wanted = None if job is None else self.loop.records.find(job).id
        for line in await self._gap(after or 0):
            yield line_view(line)
            after = line.id
        async for line in self.loop.broadcast.watch(after):
            if wanted is None or line.job == wanted:
                yield line_view(line)

    async def _gap(self, after: int) -> list[HistoryLine]:
        """What is told to who has seen an event whose followers are gone; who begins at 0 takes what there is."""
        if not 0 < after < self.loop.broadcast.last:
            return []
        first = await self.loop.store.first_history() or self.loop.broadcast.last + 1
        if after + 1 >= first:
            return []
        text = f"Events up to {first - 1} are no longer kept: look how jobs are now, and go on from here."
        return [HistoryLine(id=first - 1, at=self.loop.clock.now(), job=None, type="gap", text=text)]

    def last_event(self) -> int:
        """Id of the newest event; 0 before the first."""
        return self.loop.broadcast.last

    def decisions(self, limit: int) -> list[dict[str, Any]]:
        """The last decisions, newest last."""
        return self.loop.decided.last(limit, self.loop.engine.query, self.loop.records)

    def decision(self, revision: int) -> dict[str, Any]:
        """One of them, with its reasons."""
        found = self.loop.decided.find(revision, self.loop.engine.query, self.loop.records)
        if found is not None:
            return found
        raise NotFound(f"no decision {revision} is kept; `levada decisions ls` lists those that are")

    def decision_tally(self) -> list[dict[str, Any]]:
        """What each policy did since the server started: `{"policy", "made", "failed", "seconds"}`."""
        return [
            {"policy": policy, "made": made, "failed": failed, "seconds": seconds}
            for policy, (made, failed, seconds) in self.loop.decided.tally.items()
        ]

    def faults(self) -> list[dict[str, Any]]:
        """The last faults of the engine, newest last."""
        return self.loop.faults.views()

    def fault_tally(self) -> dict[str, int]:
        """Faults of the engine since the server started, by kind."""
        return dict(self.loop.faults.counts)

    def plans(self, limit: int) -> list[dict[str, Any]]:
        """The last plans, newest last."""
        return self.loop.plans[-limit:]

    async def usage(self, by: list[str], since: float) -> list[dict[str, Any]]:
        """GPU seconds of jobs that ran since a moment (unix time), by user, queue, workload or gpu_type."""
        unknown = [name for name in by if name not in _BY]
        if unknown or not by:
            raise BadInput.one(f"must be some of {', '.join(_BY)}", "by")
        found = [msgspec.json.decode(result, type=dict[str, Any]) for _, result in await self.loop.store.results(since)]
        records = self.loop.records.by_id.values()
        found += [self.loop.view(record, places={}) for record in records if record.result is None]
        sums: dict[tuple[str, ...], dict[str, float]] = {}
        for view in found:
            key = tuple(str(view[name] if view[name] is not None else "-") for name in by)
            each = sums.setdefault(key, {"jobs": 0, "gpu_seconds": 0.0, "running_s": 0.0, "waiting_s": 0.0})
            each["jobs"] += 1
            for name in ("gpu_seconds", "running_s", "waiting_s"):
                each[name] += view[name]
        rows = [{**dict(zip(by, key, strict=True)), **amounts} for key, amounts in sums.items()]
        return sorted(rows, key=lambda row: -float(row["gpu_seconds"]))


def line_view(line: HistoryLine) -> dict[str, Any]:
    """A line of history as users see it."""
    head = {"id": line.id, "time": views.moment(line.at), "type": line.type, "job": line.job, "text": line.text}
    return {**line.data, **head}
