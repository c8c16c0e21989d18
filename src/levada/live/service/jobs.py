"""Requests about submitted jobs: read, explain, update, suspend, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import numpy as np

from levada.api.types import CurveView, ExplanationView, JobView, LogLineView
from levada.backends.protocol import Note
from levada.core import events as ev
from levada.core.job import LARGEST_PRIORITY, LARGEST_SIZE, Preemptible
from levada.engine.queries import JobState
from levada.errors import UNSAVED, BadInput, Fault, Refused, did_you_mean
from levada.jobfile.model import next_multiple
from levada.live import views
from levada.live.curve import curve
from levada.live.forecast import forecast_in_thread
from levada.live.loop import Loop
from levada.live.manifest import PREEMPTIBLE
from levada.live.records import JobRecord

#: Fields of a job that an update can change.
_CHANGES = {"min", "max", "priority", "weight", "queue", "preemptible"}
#: Views that are built without yielding to other requests: a few milliseconds.
_VIEWS_PER_SLICE = 200


def _describe(update: ev.JobUpdate, before: Mapping[str, object]) -> str:
    """Describe an update for the history, with the values from *before* it."""
    values = {name: getattr(update, name) for name in ("fixed", *sorted(_CHANGES))}
    if update.preemptible is not None:
        values["preemptible"] = views.preemptible(update.preemptible)
    parts = [
        f"{name} {views.in_file(value)}" + (f" (was {views.in_file(before[name])})" if name in before else "")
        for name, value in values.items()
        if value is not None
    ]
    return f"Updated: {', '.join(parts)}."


def _workers(count: int) -> str:
    return f"{count} worker" if count == 1 else f"{count} workers"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


class JobService:
    """Reads and changes jobs that were submitted."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    # --- read -------------------------------------------------------------------------------------------------------

    def get(self, name: str, *, user: str | None = None) -> JobView:
        """Return the job with this id, unique prefix or last four characters, or *user*'s newest of this workload."""
        return self._loop.view(self._loop.records.find(name, user))

    def page(
        self,
        *,
        phases: set[str] | None,
        user: str | None,
        queue: str | None,
        labels: dict[str, str],
        after: str | None,
        limit: int,
    ) -> tuple[list[JobView], str | None]:
        """Return a page of matching jobs, newest last, and the cursor of the next page."""
        begin = -1
        if after is not None:
            if not (after.isascii() and after.isdecimal()):
                raise BadInput.one("was not issued by this server; start without a cursor", "cursor")
            begin = int(after[:20])
        now, positions = self._loop.clock.now(), self._loop.engine.query.positions()
        jobs: list[JobView] = []
        for number in sorted(self._loop.records.by_number):
            record = self._loop.records.by_number[number]
            if number <= begin or (user is not None and record.user != user) or record.is_expired(now):
                continue
            if any(record.about.labels.get(name) != value for name, value in labels.items()):
                continue
            if phases is not None or queue is not None:
                phase, of_queue = self._loop.phase_and_queue(record)
                if (phases is not None and phase not in phases) or (queue is not None and of_queue != queue):
                    continue
            if len(jobs) == limit:
                return jobs, str(self._loop.records.by_id[jobs[-1]["id"]].number)
            jobs.append(self._loop.view(record, now, positions))
        return jobs, None

    async def living(self) -> AsyncIterator[list[JobView]]:
        """Yield all active jobs in slices, without their queue positions; other requests run in between."""
        records = [record for record in self._loop.records.by_number.values() if record.result is None]
        for begin in range(0, len(records), _VIEWS_PER_SLICE):
            now = self._loop.clock.now()
            jobs = [self._loop.view(record, now, {}) for record in records[begin : begin + _VIEWS_PER_SLICE]]
            yield [job for job in jobs if job["finished"] is None]
            await asyncio.sleep(0)

    def version(self, job_id: str) -> str:
        """Return an entity tag that changes with every field of the job's view except its progress."""
        record = self._loop.records.find(job_id)
        if record.result is not None:
            return f"{record.number}-ended"
        job = self._loop.engine.query.job(record.id)
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
    ) -> AsyncIterator[LogLineView]:
        """Yield lines of output, optionally from *since* (unix time) on: `{"worker", "time", "text"}`."""
        record = self._loop.records.find(job_id)
        lines = self._loop.backend.logs(record.id, worker=worker, tail=tail, follow=follow, previous=previous)
        async for line in lines:
            if since is None or line.at >= since or not line.at:
                yield {"worker": line.worker, "time": views.moment(line.at or None), "text": line.text}

    async def explain(self, job_id: str) -> ExplanationView:
        """Explain why a job waits or has its size, with a forecast of its start and end."""
        record = self._loop.records.find(job_id)
        if record.result is not None:
            result = record.result
            return {
                "job": record.id,
                "phase": result["phase"],
                "reason": result["reason"],
                "would_help": [],
                "before": [],
            }
        engine = self._loop.engine
        explanation: ExplanationView = msgspec.to_builtins(engine.explain(record.id))
        forecasts = await forecast_in_thread(engine, self._loop.clock.now(), [record.number])
        return {**explanation, **forecasts.get(record.number, {})}

    def curve(self, job_id: str) -> CurveView:
        """Return speeds of the job's workload by GPU type and size, measured and fitted, and costs of resizing."""
        return curve(self._loop.records.find(job_id), self._loop.engine.query)

    # --- change -----------------------------------------------------------------------------------------------------

    async def update(self, job_id: str, changes: dict[str, Any], *, force: bool = False) -> JobView:
        """Change priority, queue, min, max, weight or preemptible.

        A new range ends a fixed size (`scale`) and takes effect like one.
        """
        record = self._active_record(job_id)
        return await self._change(record, self._checked(record, changes), force=force)

    async def scale(self, job_id: str, workers: int, *, force: bool = False) -> JobView:
        """Fix a job at *workers* until its range is changed.

        A job that would restart without a checkpoint keeps its size until it has saved one; *force* restarts it now.
        `message` of the answer says when the new size takes effect, `unsaved` what *force* would lose.
        """
        record = self._active_record(job_id)
        self._check_size(record, workers)
        return await self._change(record, ev.JobUpdate(number=record.number, fixed=workers), force=force)

    async def _change(self, record: JobRecord, update: ev.JobUpdate, *, force: bool) -> JobView:
        update = msgspec.structs.replace(update, force=force)
        change = ev.JobsUpdated(at=0.0, updates=(update,))
        self._check_it_fits(record, change)
        note = Note(job=record.id, type="update", text=_describe(update, self._loop.view(record)))
        await self._loop.apply(change, notes=(note,))
        resized = update.fixed is not None or update.min is not None or update.max is not None
        view = self._loop.view(record)
        if not resized:
            return view
        message, unsaved = self._size_message(record, update)
        return {**view, "message": message, "unsaved": unsaved}

    def _check_size(self, record: JobRecord, workers: int) -> None:
        """Raise BadInput for a size that is out of range or no multiple of the job's step."""
        if not 1 <= workers <= LARGEST_SIZE:
            raise BadInput.one(f"must be 1 to {LARGEST_SIZE:,}", "workers")
        job = self._active_job(record)
        if workers % job.step:
            raise BadInput.one(f"{workers} is not a multiple of the job's step ({job.step})", "workers")

    def _check_it_fits(self, record: JobRecord, change: ev.JobsUpdated) -> None:
        """Raise Refused if a running job could never run again, or never reach the requested size."""
        job = self._loop.engine.query.job(record.id)
        if job is None or not job.held:
            return
        (update,) = change.updates
        twin = self._loop.engine.fork()
        twin.handle(change)
        changed = twin.query.job(record.id)
        if changed is None:
            return
        most = twin.query.most_workers(job.number)
        never = bool(job.feasible and not changed.feasible)
        if never or (update.fixed is not None and most < update.fixed):
            unit = "worker" if most == 1 else "workers"
            consequence = "; with more it would never run again" if never else ""
            raise Refused(f"there is room for {most} {unit} of {record.id} at most{consequence}")

    def _size_message(self, record: JobRecord, update: ev.JobUpdate) -> tuple[str, str | None]:
        """Say when a job reaches the requested size, and what forcing it now would lose."""
        query, workers = self._loop.engine.query, update.fixed
        job = query.job(record.id)
        size = "its new range" if workers is None else _workers(workers)
        if job is None:
            return f"Will start with {size}.", None
        if not job.held or not job.count:
            most = query.most_workers(job.number)
            fewer = workers is not None and most < workers
            starts = f"fewer than {size}: there is room for {most} at most" if fewer else size
            return query.why_never(job.number) or f"Will start with {starts}.", None
        if job.below_fixed and job.min <= job.held < job.fixed:
            return f"Will change to {size} when GPUs are free; keeps {_workers(job.held)} until then.", None
        if job.min <= job.held <= job.max:
            return f"Has {size} now.", None
        if not query.is_protected(job.number):
            how = "without a restart" if job.resizes_in_place else "by a restart"
            return f"Changing to {size} {how}.", None
        unsaved = self._unsaved(job)
        if job.preemptible == Preemptible.NEVER:
            return f"Will change to {size} when it next starts: it is not preemptible.", unsaved
        text = f"Will change to {size} after its first checkpoint in $LEVADA_CHECKPOINT_DIR."
        return text, unsaved

    def _unsaved(self, job: JobState) -> str | None:
        """Describe the work that a running job loses if it is stopped now; None if it loses nothing."""
        workers = job.observed
        if not (workers and self._loop.engine.query.loses_work(job.number)):
            return None
        ran_s = job.run_running_s + max(0.0, self._loop.clock.now() - job.since)
        return f"{_duration(ran_s)} of work of {_workers(workers)}"

    def _checked(self, record: JobRecord, changes: dict[str, Any]) -> ev.JobUpdate:
        """Convert *changes* to an update; raises BadInput with all faults."""
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
        queues = [queue.name for queue in self._loop.engine.query.queue_values]
        if known.get("queue", queues[0]) not in queues:
            name = str(known["queue"])
            faults.append(
                Fault("queue", f"there is no queue {name}" + did_you_mean(name, queues, "`levada queues` lists them"))
            )
        if not changes:
            faults.append(Fault("", f"nothing to change; give some of {', '.join(sorted(_CHANGES))}"))
        if not faults:
            job = self._active_job(record)
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

    async def cancel(self, job_id: str) -> JobView:
        """Cancel a job; Refused if it has ended."""
        return await self._send(job_id, ev.JobsCancelled)

    async def suspend(self, job_id: str, *, force: bool = False) -> JobView:
        """Stop a job until it is resumed; Refused if that loses unsaved work, unless *force*."""
        record = self._active_record(job_id)
        job = self._loop.engine.query.job(record.id)
        # The user of a job with `preemptible: true` has accepted the loss of unsaved work.
        keeps_work = job is not None and not force and job.preemptible in (Preemptible.AUTO, Preemptible.NEVER)
        if job is not None and keeps_work and (lost := self._unsaved(job)) is not None:
            raise Refused(
                f"{record.id} has saved no checkpoint since it started: {lost} would be lost; "
                "use --force (force=true over HTTP) to suspend it anyway",
                UNSAVED,
            )
        return await self._send(job_id, ev.JobsSuspended)

    async def resume(self, job_id: str) -> JobView:
        """Queue a suspended or quarantined job again."""
        return await self._send(job_id, ev.JobsResumed)

    async def _send(
        self, job_id: str, kind: type[ev.JobsCancelled] | type[ev.JobsSuspended] | type[ev.JobsResumed]
    ) -> JobView:
        record = self._active_record(job_id)
        await self._loop.apply(kind(at=0.0, number=np.array([record.number])))
        if record.result is not None and record.result["phase"] != "Cancelled":
            self._active_record(job_id)  # raises Refused: it ended by itself in the same turn
        return self._loop.view(record)

    def _active_record(self, job_id: str) -> JobRecord:
        record = self._loop.records.find(job_id)
        if record.result is not None:
            raise Refused(f"{record.id} has ended already ({record.result['phase']})")
        self._active_job(record)
        return record

    def _active_job(self, record: JobRecord) -> JobState:
        job = self._loop.engine.query.job(record.id)
        if job is None:
            raise Refused(f"{record.id} has just ended")  # its end is not stored yet
        return job
