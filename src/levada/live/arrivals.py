"""Arrivals: objects of a cluster become jobs, updates and cancellations.

Users create, edit and delete them.

The id of a job follows from name, creation time and uid of its object. So an object that is seen again, also by another
server, is the same job, and an object that is created again under its name is another one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from levada.backends.protocol import Arrival, Note, Report
from levada.core import events as ev
from levada.core.job import Job
from levada.errors import BadInput, LevadaError, Refused, Unavailable
from levada.live.faces import Faces
from levada.live.loop import Loop
from levada.live.manifest import ENDINGS, Submission, check_job, details_of, ending, prepare
from levada.live.records import JobRecord
from levada.live.requests import Request

_log = logging.getLogger(__name__)

#: Most arrivals of one request, and the most that are read without yielding to other requests.
_PER_REQUEST, _PER_SLICE = 500, 20
#: Seconds before arrivals are handled again that the store did not accept.
_RETRY_S = 1.0
#: Fields that follow the object of a job while it is active.
_EDITABLE = ("min", "max", "priority", "queue", "preemptible")
#: Longest part of a name in an id, and longest name of a user: the store has columns of 200 characters.
_LONGEST_NAME, _LONGEST_USER = 150, 200
_QUEUE_PATH = "metadata.labels[levada.dev/queue]"
_SUSPEND = "levada.dev/suspend"


def job_id(arrival: Arrival) -> str:
    """Return the id of the job of an arrival."""
    metadata = arrival.document["metadata"]
    number = int.from_bytes(hashlib.sha256(metadata["uid"].encode()).digest()[:8])
    created = datetime.fromtimestamp(arrival.created, UTC)
    return f"{metadata['name'][:_LONGEST_NAME]}-{created:%Y%m%d-%H%M%S}-{ending(number % ENDINGS)}"


class ClusterArrivals:
    """Handles arrivals in the order of their reports, with the checks of a submission."""

    def __init__(self, loop: Loop, faces: Faces) -> None:
        self._loop, self._faces = loop, faces
        #: Arrivals to handle, by key, each in its latest state; None = it has departed.
        self._pending: dict[str, Arrival | None] = {}
        #: Refused arrivals by key; the queues they need may appear.
        self._refused: dict[str, Arrival] = {}
        #: Ids of jobs by key of their arrival.
        self._ids: dict[str, str] = {}
        self._wakeup = asyncio.Event()

    # --- reports ----------------------------------------------------------------------------------------------------

    def open(self, report: Report) -> None:
        """Take the first report, which has all arrivals; jobs whose objects are gone have departed."""
        self.observe(report)
        present = {job_id(arrival) for arrival in report.arrivals}
        for record in self._loop.records.by_id.values():
            if record.result is None and record.id not in present and _object_of(record).get("uid"):
                self._pending[record.id] = None

    def observe(self, report: Report) -> None:
        """Take the arrivals and departures of a report."""
        self._pending |= {arrival.key: arrival for arrival in report.arrivals}
        self._pending |= dict.fromkeys(report.departed)
        if self._pending:
            self._wakeup.set()

    def retry_refused(self) -> None:
        """Handle refused arrivals again: the queues have changed."""
        self._pending = {**self._refused, **self._pending}
        self._refused.clear()
        self._wakeup.set()

    async def run(self) -> None:
        """Handle arrivals until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self._pending:
                batch = dict(list(self._pending.items())[:_PER_REQUEST])
                for key in batch:
                    del self._pending[key]
                await self._handle_safely(batch)

    async def _handle_safely(self, batch: Mapping[str, Arrival | None]) -> None:
        """Handle a batch; one that fails is split, so that others do not suffer; the store may be available later."""
        try:
            await self._handle(batch)
        except Unavailable:
            self._pending = {**batch, **self._pending}
            await asyncio.sleep(_RETRY_S)
        except Exception as error:
            if len(batch) > 1:
                for key, arrival in batch.items():
                    await self._handle_safely({key: arrival})
                return
            for key, arrival in batch.items():
                _log.exception("cannot adopt %s", key)
                if arrival is not None:
                    await self._refuse(arrival, [f"internal error: {error}"])

    # --- jobs -------------------------------------------------------------------------------------------------------

    async def _handle(self, batch: Mapping[str, Arrival | None]) -> None:
        """Turn a batch into one request, and tell the backend which jobs its arrivals are."""
        departed = [key for key, arrival in batch.items() if arrival is None]
        submissions = await self._read([arrival for arrival in batch.values() if arrival is not None])
        records = self._loop.records.by_id
        unknown = [submission.id for _, submission in submissions if submission.id not in records]
        past = {row.id for row in await self._loop.store.past_jobs(unknown)}
        new = [
            submission for _, submission in submissions if submission.id not in records and submission.id not in past
        ]
        request = Request(
            events=self._cancellations(departed),
            jobs=[submission.job for submission in new],
            records=[
                JobRecord(submission.id, -1, submission.job.user, submission.job.submitted, details_of(submission))
                for submission in new
            ],
        )
        for _, submission in submissions:
            if submission.id in records and records[submission.id].result is None:
                self._edit(request, records[submission.id], submission)
        if request.jobs or request.events or request.edits:
            await self._loop.submit(request)
        for key in departed:
            self._ids.pop(key, None)
        if paused := [record.number for record in request.records if _is_paused(_document_of(record))]:
            await self._loop.apply(ev.JobsSuspended(at=0.0, number=np.array(paused)))
        for arrival, submission in submissions:
            if submission.id not in past:
                await self._accept(arrival, submission.id)

    async def _read(self, arrivals: Sequence[Arrival]) -> list[tuple[Arrival, Submission]]:
        """Validate arrivals; refuses those with faults."""
        submissions = []
        for index, arrival in enumerate(arrivals):
            self._refused.pop(arrival.key, None)
            try:
                submissions.append((arrival, self._submission(arrival)))
            except BadInput as bad:
                await self._refuse(arrival, bad.lines())
            except Refused as refused:
                await self._refuse(arrival, [str(refused)])
            if index % _PER_SLICE == _PER_SLICE - 1:
                await asyncio.sleep(0)
        return submissions

    def _submission(self, arrival: Arrival) -> Submission:
        """Validate an arrival; raises BadInput or Refused."""
        submission = self._prepared(arrival.document, arrival.user[:_LONGEST_USER], arrival.created, job_id(arrival))
        check_job(submission.job, [queue.name for queue in self._loop.engine.query.queue_values], _QUEUE_PATH)
        job = msgspec.structs.replace(submission.job, node_class=arrival.node_class)
        return msgspec.structs.replace(submission, job=job)

    def _prepared(self, document: Mapping[str, Any], user: str, created: float, identity: str) -> Submission:
        now = min(created, self._loop.clock.now())
        capabilities = self._loop.backend.capabilities
        (submission,) = prepare(document, user=user, now=now, identity=identity, capabilities=capabilities)
        return submission

    async def _accept(self, arrival: Arrival, identity: str) -> None:
        """Tell the backend the job of an arrival, and how it ended if it did: the backend may not have heard that."""
        self._ids[arrival.key] = identity
        await self._loop.backend.accept(arrival.key, identity)
        record = self._loop.records.by_id.get(identity)
        if record is not None and record.result is not None:
            await self._loop.backend.ended(identity, record.result["phase"])
        await self._faces.show(identity)

    async def _refuse(self, arrival: Arrival, faults: Sequence[str]) -> None:
        self._refused[arrival.key] = arrival
        await self._loop.backend.refuse(arrival.key, faults)

    # --- changes ----------------------------------------------------------------------------------------------------

    def _cancellations(self, departed: Iterable[str]) -> list[ev.Event]:
        """Return the cancellation of departed jobs; a key may also be the id of a job that Levada created."""
        numbers = []
        for key in departed:
            self._refused.pop(key, None)
            record = self._loop.records.by_id.get(self._ids.get(key, key))
            if record is not None and record.result is None:
                numbers.append(record.number)
        return [ev.JobsCancelled(at=0.0, number=np.array(numbers))] if numbers else []

    def _edit(self, request: Request, record: JobRecord, submission: Submission) -> None:
        """Add what the user has changed in the object of an active job since it was last seen."""
        details, before = details_of(submission), _document_of(record)
        if bytes(details.document) == bytes(record.about.document):
            return
        request.edits = [*request.edits, (record, details)]
        changed = self._changed(record, before, submission.job)
        if changed:
            update = ev.JobUpdate(number=record.number, **changed)
            text = ", ".join(f"{name} is {getattr(submission.job, name)}" for name in changed if name != "preemptible")
            request.events = [*request.events, ev.JobsUpdated(at=0.0, updates=(update,))]
            note = Note(job=record.id, type="update", text=f"Its object was changed: {text or 'preemptible'}.")
            request.notes = [*request.notes, note]
        if (pauses := _is_paused(submission.document)) != _is_paused(before):
            kind = ev.JobsSuspended if pauses else ev.JobsResumed
            request.events = [*request.events, kind(at=0.0, number=np.array([record.number]))]

    def _changed(self, record: JobRecord, before: Mapping[str, Any], job: Job) -> dict[str, Any]:
        """Return the fields that differ from those of the object *before*; limits of the size change together."""
        try:
            old = self._prepared(before, record.user, record.submitted, record.id).job
        except LevadaError:
            names = set(_EDITABLE)  # another version of Levada has accepted it
        else:
            names = {name for name in _EDITABLE if getattr(old, name) != getattr(job, name)}
        if names & {"min", "max"}:
            names |= {"min", "max"}
        return {name: getattr(job, name) for name in _EDITABLE if name in names}


def _document_of(record: JobRecord) -> dict[str, Any]:
    return msgspec.json.decode(record.about.document, type=dict[str, Any])


def _object_of(record: JobRecord) -> Mapping[str, Any]:
    """Return the metadata of the object that a job was adopted from; without uid if Levada has created it."""
    return _document_of(record).get("metadata") or {}


def _is_paused(document: Mapping[str, Any]) -> bool:
    notes = (document.get("metadata") or {}).get("annotations") or {}
    return str(notes.get(_SUSPEND)).lower() == "true"
