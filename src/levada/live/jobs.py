"""What users do to jobs that were taken: look at them, change, cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from levada.backends.protocol import Note
from levada.core import events as ev
from levada.core.job import LARGEST_PRIORITY, LARGEST_SIZE
from levada.engine.admit import most_workers
from levada.errors import BadInput, Fault, Refused, did_you_mean
from levada.jobfile.model import next_multiple
from levada.live import views
from levada.live.records import Record
from levada.live.submissions import Submissions

_CHANGES = {"min", "max", "priority", "weight", "queue"}


def _in_words(update: ev.JobUpdate, before: dict[str, Any]) -> str:
    """What an update changes of a job that looked so."""
    values = {name: getattr(update, name) for name in sorted(_CHANGES)}
    parts = [
        f"{name} is {value}" + (f" (it was {before[name]})" if name in before else "")
        for name, value in values.items()
        if value is not None
    ]
    return f"It was changed: {', '.join(parts)}."


class Jobs(Submissions):
    """Jobs, for `Service`."""

    # --- look -------------------------------------------------------------------------------------------------------

    def job(self, name: str, *, user: str | None = None) -> dict[str, Any]:
        """The job of this id, unambiguous prefix, last four characters, or *user*'s newest of this workload."""
        return self.loop.view(self.loop.records.find(name, user))

    def jobs(
        self,
        *,
        phases: set[str] | None,
        user: str | None,
        queue: str | None,
        labels: dict[str, str],
        after: str | None,
        limit: int,
    ) -> tuple[list[dict[str, Any]], str | None]:
        """A page of jobs, newest last, and where the next page begins."""
        begin = -1
        if after is not None:
            if not (after.isascii() and after.isdecimal()):
                raise BadInput.one("was not given out by this server; begin without one", "cursor")
            begin = int(after[:20])
        state, now = self.loop.engine.state, self.loop.clock.now()
        places = views.positions(state)
        found: list[dict[str, Any]] = []
        for number in sorted(self.loop.records.by_number):
            record = self.loop.records.by_number[number]
            if number <= begin or (user is not None and record.user != user) or record.is_expired(now):
                continue
            if any(record.about.labels.get(name) != value for name, value in labels.items()):
                continue
            if phases is not None or queue is not None:
                phase, of_queue = self.loop.glance(record)
                if (phases is not None and phase not in phases) or (queue is not None and of_queue != queue):
                    continue
            if len(found) == limit:
                return found, str(self.loop.records.by_id[found[-1]["id"]].number)
            found.append(self.loop.view(record, now, places))
        return found, None

    def version(self, job_id: str) -> str:
        """Changes whenever the job's view changes in substance."""
        record = self.loop.records.find(job_id)
        if record.result is not None:
            return f"{record.number}-ended"
        table = self.loop.engine.state.world.table
        slot = self.loop.engine.state.world.slot(record.id)
        if slot < 0:
            return f"{record.number}-new"
        parts = (table.changed, table.phase, table.reason, table.held, table.generation)
        return "-".join([str(record.number), *(str(int(column[slot])) for column in parts)])

    async def logs(
        self,
        job_id: str,
        *,
        worker: str | None,
        tail: int | None,
        since: float | None,
        follow: bool,
        previous: bool,
    ) -> AsyncIterator[dict[str, Any]]:
        """Lines of output: `{"worker", "time", "text"}`."""
        record = self.loop.records.find(job_id)
        lines = self.loop.backend.logs(record.id, worker=worker, tail=tail, follow=follow, previous=previous)
        async for line in lines:
            if since is None or line.at >= since or not line.at:
                yield {"worker": line.worker, "time": views.moment(line.at or None), "text": line.text}

    # --- change -----------------------------------------------------------------------------------------------------

    async def update(self, job_id: str, changes: dict[str, Any]) -> dict[str, Any]:
        """Changes priority, queue, min, max, weight."""
        record = self._living(job_id)
        checked = self._checked(record, changes)
        change = ev.JobsUpdated(at=0.0, updates=(checked,))
        self._check_it_fits(record, change)
        note = Note(job=record.id, type="update", text=_in_words(checked, self.loop.view(record)))
        await self.loop.tell(change, notes=(note,))
        return self.loop.view(record)

    async def scale(self, job_id: str, workers: int) -> dict[str, Any]:
        """Fixes a job's size: it has that many workers, neither more nor less, until its range is changed."""
        return await self.update(job_id, {"min": workers, "max": workers})

    def _check_it_fits(self, record: Record, change: ev.JobsUpdated) -> None:
        """Raises Refused where a job that runs could never run again."""
        state = self.loop.engine.state
        slot = state.world.slot(record.id)
        if slot < 0 or not state.world.table.held[slot]:
            return
        twin = self.loop.engine.fork()
        twin.handle(change)
        if state.world.table.feasible[slot] and not twin.state.world.table.feasible[slot]:
            most = int(most_workers(twin.state, slot))
            of = "worker" if most == 1 else "workers"
            raise Refused(f"there is room for {most} {of} of {record.id} at most; with more it would never run again")

    def _checked(self, record: Record, changes: dict[str, Any]) -> ev.JobUpdate:
        state = self.loop.engine.state
        slot = state.world.slot(record.id)
        faults = [
            Fault(name, f"cannot be changed; {', '.join(sorted(_CHANGES))} can")
            for name in changes
            if name not in _CHANGES
        ]
        known = {name: value for name, value in changes.items() if name in _CHANGES and value is not None}
        for name in ("min", "max", "priority"):
            if name in known and (isinstance(known[name], bool) or not isinstance(known[name], int)):
                faults.append(Fault(name, "must be a whole number"))
        weight = known.get("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            faults.append(Fault("weight", "must be a number above 0"))
        queues = list(state.world.queues.names)
        if known.get("queue", queues[0]) not in queues:
            name = str(known["queue"])
            faults.append(
                Fault("queue", f"there is no queue {name}" + did_you_mean(name, queues, "`levada queues` lists them"))
            )
        if not changes:
            faults.append(Fault("", f"nothing to change; give some of {', '.join(sorted(_CHANGES))}"))
        if not faults:
            step = int(state.world.table.step[slot])
            least = known.get("min", int(state.world.table.min[slot]))
            most = known.get("max", int(state.world.table.max[slot]))
            if not 1 <= least <= LARGEST_SIZE:
                faults.append(Fault("min", f"must be 1 to {LARGEST_SIZE:,}"))
            elif not least <= most <= LARGEST_SIZE:
                where = "max" if "max" in known else "min"
                faults.append(Fault(where, f"min ({least}) must not be above max ({most})"))
            elif next_multiple(least, step) > most:
                where = "min" if "min" in known else "max"
                faults.append(
                    Fault(where, f"no multiple of the job's step ({step}) is between min ({least}) and max ({most})")
                )
            elif "min" in known:
                known["min"] = next_multiple(least, step)
            if abs(known.get("priority", 0)) > LARGEST_PRIORITY:
                faults.append(Fault("priority", f"must be -{LARGEST_PRIORITY:,} to {LARGEST_PRIORITY:,}"))
        if faults:
            raise BadInput(faults)
        if "weight" in known:
            known["weight"] = float(known["weight"])
        return ev.JobUpdate(number=record.number, **known)

    async def cancel(self, job_id: str) -> dict[str, Any]:
        """Ends a job for good; one that is over already is Refused."""
        return await self._do(job_id, ev.JobsCancelled)

    async def suspend(self, job_id: str) -> dict[str, Any]:
        """Stops a job until it is resumed."""
        return await self._do(job_id, ev.JobsSuspended)

    async def resume(self, job_id: str) -> dict[str, Any]:
        """Lets a suspended job, or one that was set aside, wait for GPUs again."""
        return await self._do(job_id, ev.JobsResumed)

    async def _do(
        self, job_id: str, kind: type[ev.JobsCancelled] | type[ev.JobsSuspended] | type[ev.JobsResumed]
    ) -> dict[str, Any]:
        record = self._living(job_id)
        await self.loop.tell(kind(at=0.0, number=np.array([record.number])))
        if record.result is not None and record.result["phase"] != "Cancelled":
            self._living(job_id)  # it ended by itself in the same moment
        return self.loop.view(record)

    def _living(self, job_id: str) -> Record:
        record = self.loop.records.find(job_id)
        if record.result is not None:
            raise Refused(f"{record.id} has ended already ({record.result['phase']})")
        if self.loop.engine.state.world.slot(record.id) < 0:
            raise Refused(f"{record.id} has just ended")  # which is being written down
        return record
