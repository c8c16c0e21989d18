"""Requests to the loop: events and jobs that become part of its next turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from levada.backends.protocol import Note
from levada.core.batch import JobBatch
from levada.core.commands import Faulted
from levada.core.events import Event, JobsSubmitted
from levada.core.job import Job
from levada.errors import Unavailable
from levada.live.records import JobDetails, JobRecord
from levada.live.store import AuditEntry, RequestRow


class Request(msgspec.Struct, kw_only=True):
    """Input for a turn: a call that waits for its result, or a report that cannot be refused."""

    events: Sequence[Event] = ()
    #: New jobs, with their records.
    jobs: Sequence[Job] = ()
    records: Sequence[JobRecord] = ()
    #: New details of jobs whose users have edited them.
    edits: Sequence[tuple[JobRecord, JobDetails]] = ()
    notes: Sequence[Note] = ()
    #: Makes the row that stores the key of a submission, once the request is part of a turn.
    request: Callable[[], RequestRow] | None = None
    #: Entry for the audit log.
    audit_entry: AuditEntry | None = None
    #: Resolved when the turn is stored; None for a report, for which no caller waits.
    done: asyncio.Future[None] | None = None


def engine_events(requests: Sequence[Request], now: float) -> tuple[Event, ...]:
    """Return the events of a turn; all new jobs are one event, which costs little more than a single job."""
    events = [msgspec.structs.replace(event, at=now) for request in requests for event in request.events]
    jobs = [job for request in requests for job in request.jobs]
    return (JobsSubmitted(at=now, jobs=JobBatch.of(jobs)), *events) if jobs else tuple(events)


def faulted_requests(requests: Sequence[Request], faults: Sequence[Faulted], first: int) -> dict[int, str]:
    """Return the error of each waiting request whose event faulted, by its index.

    *first*: position of the first event of `engine_events` in the turn.
    """
    owners = [index for index, request in enumerate(requests) for _ in request.events]
    by_job = {job.id: index for index, request in enumerate(requests) for job in request.jobs}
    errors: dict[int, str] = {}
    for fault in faults:
        position = fault.position - first - (len(by_job) > 0)
        if isinstance(fault.event, JobsSubmitted):
            indices = {by_job[job_id] for job_id in fault.event.jobs.id if job_id in by_job}
        else:
            indices = {owners[position]} if fault.position >= first and 0 <= position < len(owners) else set()
        for index in indices:
            errors.setdefault(index, f"internal error, undone: {fault.error}; run `levada doctor` for details")
    return {index: error for index, error in errors.items() if requests[index].done is not None}


def faulted_submissions(requests: Sequence[Request], faults: Sequence[Faulted]) -> list[JobRecord]:
    """Return the records of jobs whose submission faulted."""
    ids = {job_id for fault in faults if isinstance(fault.event, JobsSubmitted) for job_id in fault.event.jobs.id}
    return [record for request in requests for record in request.records if record.id in ids]


def fail_waiters(requests: Sequence[Request], why: str, error: type[Unavailable] = Unavailable) -> None:
    """Raise *error* in all callers that wait for these requests."""
    for request in requests:
        if request.done is not None and not request.done.done():
            request.done.set_exception(error(why))
