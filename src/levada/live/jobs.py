"""What users do to jobs that were taken: look at them, change, cancel."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import numpy as np

from levada.backends.protocol import Note
from levada.core import events as ev
from levada.core.job import LARGEST_PRIORITY, LARGEST_SIZE, Preemptible
from levada.engine.queries import JobState
from levada.errors import UNSAVED, BadInput, Fault, Refused, did_you_mean
from levada.jobfile.model import next_multiple
from levada.live import views
from levada.live.intake import PREEMPTIBLE
from levada.live.records import Record
from levada.live.submissions import Submissions

_CHANGES = {"min", "max", "priority", "weight", "queue", "preemptible"}


def _in_words(update: ev.JobUpdate, before: dict[str, Any]) -> str:
    """What an update changes of a job that looked so."""
    values = {name: getattr(update, name) for name in ("fixed", *sorted(_CHANGES))}
    if update.preemptible is not None:
        values["preemptible"] = views.preemptible(update.preemptible)
    parts = [
        f"{name} is {views.in_file(value)}" + (f" (it was {views.in_file(before[name])})" if name in before else "")
        for name, value in values.items()
        if value is not None
    ]
    return f"It was changed: {', '.join(parts)}."


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


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
        now, places = self.loop.clock.now(), self.loop.engine.query.positions()
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
        job = self.loop.engine.query.job(record.id)
        if job is None:
            return f"{record.number}-new"
        parts = (job.number, job.changed, job.phase, job.reason, job.held, job.generation)
        return "-".join(map(str, parts))

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

    async def update(self, job_id: str, changes: dict[str, Any], *, force: bool = False) -> dict[str, Any]:
        """Changes priority, queue, min, max, weight, preemptible; a new range ends `scale` and is had as there."""
        record = self._living(job_id)
        return await self._change(record, self._checked(record, changes), force=force)

    async def scale(self, job_id: str, workers: int, *, force: bool = False) -> dict[str, Any]:
        """Fixes a job at so many workers until its range is changed.

        A job that would be restarted from nothing keeps its size until it has saved a checkpoint; with *force* it is
        restarted now. `message` of the answer says when it has the new size, and `unsaved` what *force* would lose.
        """
        record = self._living(job_id)
        self._check_size(record, workers)
        return await self._change(record, ev.JobUpdate(number=record.number, fixed=workers), force=force)

    async def _change(self, record: Record, update: ev.JobUpdate, *, force: bool) -> dict[str, Any]:
        update = msgspec.structs.replace(update, force=force)
        change = ev.JobsUpdated(at=0.0, updates=(update,))
        self._check_it_fits(record, change)
        note = Note(job=record.id, type="update", text=_in_words(update, self.loop.view(record)))
        await self.loop.tell(change, notes=(note,))
        resized = update.fixed is not None or update.min is not None or update.max is not None
        return {**self.loop.view(record), **(self._when(record, update) if resized else {})}

    def _check_size(self, record: Record, workers: int) -> None:
        """Raises BadInput for a size that no job, or this one, can have."""
        if not 1 <= workers <= LARGEST_SIZE:
            raise BadInput.one(f"must be 1 to {LARGEST_SIZE:,}", "workers")
        job = self._active(record)
        if workers % job.step:
            raise BadInput.one(f"{workers} is no multiple of the job's step ({job.step})", "workers")

    def _check_it_fits(self, record: Record, change: ev.JobsUpdated) -> None:
        """Raises Refused where a job that runs could never run again, or never have the size that is asked for."""
        job = self.loop.engine.query.job(record.id)
        if job is None or not job.held:
            return
        (update,) = change.updates
        twin = self.loop.engine.fork()
        twin.handle(change)
        then = twin.query.job(record.id)
        if then is None:
            return
        most = twin.query.most_workers(job.number)
        never = bool(job.feasible and not then.feasible)
        if never or (update.fixed is not None and most < update.fixed):
            of = "worker" if most == 1 else "workers"
            more = "; with more it would never run again" if never else ""
            raise Refused(f"there is room for {most} {of} of {record.id} at most{more}")

    def _when(self, record: Record, update: ev.JobUpdate) -> dict[str, Any]:
        """When a job has the size that was asked for, and what it would lose if it had to have it now."""
        query, workers = self.loop.engine.query, update.fixed
        job = query.job(record.id)
        what = "its new range" if workers is None else f"{workers} worker{'' if workers == 1 else 's'}"
        if job is None:
            return {"message": f"Will start with {what}."}
        if not job.held or not job.count:
            most = query.most_workers(job.number)
            fewer = workers is not None and most < workers
            starts = f"fewer than {what}: there is room for {most} at most" if fewer else what
            return {"message": query.why_never(job.number) or f"Will start with {starts}."}
        if job.below_fixed and job.min <= job.held < job.fixed:
            return {"message": f"Will change to {what} when there is room; until then it goes on with {job.held}."}
        if job.min <= job.held <= job.max:
            return {"message": f"Has {what} now."}
        if not query.is_protected(job.number):
            how = "without a restart" if job.resizes_in_place else "by a restart"
            return {"message": f"Changing to {what} {how}."}
        unsaved = self._unsaved(job)
        if job.preemptible == Preemptible.NEVER:
            return {"message": f"Will change to {what} when it next starts: it is not preemptible.", "unsaved": unsaved}
        text = f"Will change to {what} after its first checkpoint in $LEVADA_CHECKPOINT_DIR."
        return {"message": text, "unsaved": unsaved}

    def _unsaved(self, job: JobState) -> str | None:
        """The work that a running job loses if it is stopped now; None where it loses nothing."""
        workers = job.observed
        if not (workers and self.loop.engine.query.loses_work(job.number)):
            return None
        ran_s = job.run_running_s + max(0.0, self.loop.clock.now() - job.since)
        return f"{_duration(ran_s)} of work of {workers} worker{'' if workers == 1 else 's'}"

    def _checked(self, record: Record, changes: dict[str, Any]) -> ev.JobUpdate:
        faults = [
            Fault(name, f"cannot be changed; {', '.join(sorted(_CHANGES))} can")
            for name in changes
            if name not in _CHANGES
        ]
        known = {name: value for name, value in changes.items() if name in _CHANGES and value is not None}
        for name in ("min", "max", "priority"):
            if name in known and (isinstance(known[name], bool) or not isinstance(known[name], int)):
                faults.append(Fault(name, "must be a whole number"))
        if known.get("preemptible", "auto") not in ("auto", True, False):
            faults.append(Fault("preemptible", "must be auto, true or false"))
        weight = known.get("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            faults.append(Fault("weight", "must be a number above 0"))
        queues = [queue.name for queue in self.loop.engine.query.queue_values]
        if known.get("queue", queues[0]) not in queues:
            name = str(known["queue"])
            faults.append(
                Fault("queue", f"there is no queue {name}" + did_you_mean(name, queues, "`levada queues` lists them"))
            )
        if not changes:
            faults.append(Fault("", f"nothing to change; give some of {', '.join(sorted(_CHANGES))}"))
        if not faults:
            job = self._active(record)
            step, least, most = job.step, known.get("min", job.own_min), known.get("max", job.own_max)
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
        if "preemptible" in known:
            known["preemptible"] = PREEMPTIBLE[known["preemptible"]]
        return ev.JobUpdate(number=record.number, **known)

    async def cancel(self, job_id: str) -> dict[str, Any]:
        """Ends a job for good; one that is over already is Refused."""
        return await self._do(job_id, ev.JobsCancelled)

    async def suspend(self, job_id: str, *, force: bool = False) -> dict[str, Any]:
        """Stops a job until it is resumed; one that would lose unsaved work is Refused unless *force*."""
        record = self._living(job_id)
        job = self.loop.engine.query.job(record.id)
        # One that is preemptible at once may lose its work at any time, as its user said.
        asks = job is not None and not force and job.preemptible in (Preemptible.AUTO, Preemptible.NEVER)
        if job is not None and asks and (lost := self._unsaved(job)) is not None:
            raise Refused(
                f"{record.id} has saved no checkpoint since it started: {lost} would be lost; "
                "use --force (force=true over HTTP) to suspend it anyway",
                UNSAVED,
            )
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
        self._active(record)
        return record

    def _active(self, record: Record) -> JobState:
        job = self.loop.engine.query.job(record.id)
        if job is None:
            raise Refused(f"{record.id} has just ended")  # which is being written down
        return job
