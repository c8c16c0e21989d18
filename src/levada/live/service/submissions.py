"""Submission of jobs: validate, resolve dependencies, store, then confirm.

A submission is stored as a whole or not at all. A repeated submission with the same key gets the same jobs.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from levada.api.types import ForecastChangeView, JobView, WhatIfView
from levada.core.job import Job
from levada.errors import BadInput, Faults, LevadaError, NotFound, Refused, Unavailable
from levada.jobfile.load import in_document
from levada.live.forecast import forecast_in_thread
from levada.live.loop import Loop
from levada.live.manifest import ENDINGS, Submission, check_job, details_of, ending, prepare
from levada.live.records import JobRecord
from levada.live.requests import Request
from levada.live.store import AuditEntry, RequestRow
from levada.live.submit_warnings import SubmitWarnings
from levada.live.views import moment, timestamp
from levada.plugins import find_policy

#: Limit of jobs in one submission, array tasks included: about 3 s of work and an answer of 7 MB.
_MAX_JOBS = 10_000
#: Limit of jobs in one what-if forecast, which simulates the whole cluster.
_MAX_FORECAST_JOBS = 1000
#: Documents with more values than this are validated in a thread; fewer take a few milliseconds.
_MAX_VALUES_ON_LOOP = 1000
#: Limit of different names in `spec.after` of one submission; each is searched among all jobs.
_MAX_NAMES = 1_000
#: Limit of dependencies in one submission.
_MAX_DEPENDENCIES = 100_000
#: Views that are built without yielding to other requests.
_VIEWS_PER_SLICE = 200
#: Jobs of one submission that the audit log names.
_MAX_AUDITED_NAMES = 10


class SubmissionService:
    """Accepts submissions and forecasts hypothetical ones."""

    def __init__(self, loop: Loop, free_name: Callable[[JobRecord], Awaitable[None]]) -> None:
        """*free_name*: removes an ended job whose id a new job takes."""
        self._loop, self._free_name = loop, free_name
        self._warnings = SubmitWarnings(loop)
        #: Locks of submissions in progress, by user and key: a repeated one waits for the same answer.
        self._in_progress: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def submit(
        self, documents: list[dict[str, Any]], *, user: str, key: str | None, audit_entry: AuditEntry | None = None
    ) -> list[JobView]:
        """Accept all jobs or none; the same *key* returns the same jobs, and is Refused with another body.

        New jobs and their *audit_entry* are stored in one turn. Jobs that cannot start, or are expected to miss their
        deadline, have `warnings`.
        """
        if key is None:
            jobs = await self._views(await self._accept(documents, user, None, "", audit_entry))
        else:
            # A client that disconnects does not cancel its submission: a retry with the same key waits for the result.
            task = asyncio.create_task(self._submit_once(documents, user, key, audit_entry))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            jobs = await asyncio.shield(task)
        return await self._warnings.add_to(jobs)

    async def whatif(self, documents: list[dict[str, Any]], *, user: str, policy: str | None) -> WhatIfView:
        """Forecast these jobs, and their effect on the present ones, by forward simulation; creates nothing."""
        engine, clock, capabilities = self._loop.engine, self._loop.clock, self._loop.backend.capabilities
        now = clock.now()

        def read() -> list[Job]:
            jobs: list[Job] = []
            for number, document in enumerate(documents):
                suffix = f"{number:04d}"[-4:]
                submissions = prepare(document, user=user, now=now, suffix=suffix, capabilities=capabilities)
                jobs += [submission.job for submission in submissions]
                if len(jobs) > _MAX_FORECAST_JOBS:
                    raise BadInput.one(f"a forecast takes {_MAX_FORECAST_JOBS:,} jobs at most")
            return jobs

        jobs = await asyncio.to_thread(read)  # an array may have thousands of tasks
        if not jobs:
            raise BadInput.one("no job is given")
        if policy is not None:
            find_policy(policy)
        first = engine.query.next_number
        before = await forecast_in_thread(engine, clock.now(), None)
        after = await forecast_in_thread(engine, clock.now(), None, jobs, policy)
        names = {number: record.id for number, record in self._loop.records.by_number.items()}
        names |= {first + index: job.id for index, job in enumerate(jobs)}
        new_numbers = range(first, first + len(jobs))
        others: list[ForecastChangeView] = [
            {"job": names.get(number, str(number)), "before": before.get(number), "after": times}
            for number, times in after.items()
            if number not in new_numbers and times != before.get(number)
        ]
        return {
            "policy": policy or engine.query.policy.name,
            "now": timestamp(now),
            "jobs": [{"job": names[number], **after.get(number, {})} for number in new_numbers],
            "others": others,
        }

    async def _submit_once(
        self, documents: list[dict[str, Any]], user: str, key: str, audit_entry: AuditEntry | None
    ) -> list[JobView]:
        digest = hashlib.sha256(msgspec.json.encode(documents, order="deterministic")).hexdigest()
        async with self._in_progress.setdefault((user, key), asyncio.Lock()):
            # Raises Unresolved while an unconfirmed commit may contain this key.
            self._loop.check((user, key))
            earlier = await self._loop.store.request(user, key) if (user, key) in self._loop.keys else None
            if earlier is None:
                return await self._views(await self._accept(documents, user, key, digest, audit_entry))
        if earlier.digest != digest:
            raise Refused(f"the key {key} was used for other jobs; use a new one for each submission")
        return await self._repeat_answer(earlier)

    async def _accept(
        self, documents: list[dict[str, Any]], user: str, key: str | None, digest: str, audit_entry: AuditEntry | None
    ) -> list[str]:
        self._loop.store.check_room()
        now = self._loop.clock.now()
        read = partial(self._prepare_all, documents, user, now)
        # A large submission is read in a thread, so that other requests run meanwhile.
        prepared = await asyncio.to_thread(read) if _is_large(documents) else read()
        submissions = self._classified(await self._resolve_dependencies(prepared))
        ids = [submission.id for submission in submissions]
        self._loop.check()  # before any job is removed
        removed: list[str] = []
        for submission in submissions:
            if (old := self._replaceable(submission.id, user)) is not None:
                await self._free_name(old)
                removed.append(old.id)
        for submission in submissions:
            # Check again: another submission may have taken the id since `_prepare`.
            if self._loop.is_taken(submission.id):
                raise self._id_taken(submission, user)
        records = [JobRecord(submission.id, -1, user, now, details_of(submission)) for submission in submissions]

        def request_row() -> RequestRow:
            assert key is not None
            return RequestRow(user=user, key=key, digest=digest, answer=msgspec.json.encode(ids), at=now)

        request = Request(
            jobs=[submission.job for submission in submissions],
            records=records,
            request=None if key is None else request_row,
        )
        if audit_entry is not None:
            audit_entry.detail, request.audit_entry = names_of(ids), audit_entry
        try:
            await self._loop.submit(request)
        except Unavailable as refusal:
            if not removed:
                raise
            removals = f"ended jobs of the same name were removed: {names_of(removed)}"
            raise type(refusal)(f"{refusal}; {removals}") from None
        if audit_entry is not None:
            audit_entry.written = True
        return ids

    def _prepare_all(self, documents: Sequence[dict[str, Any]], user: str, now: float) -> list[Submission]:
        submissions: list[Submission] = []
        faults = Faults()
        taken: set[str] = set()
        for number, document in enumerate(documents, 1):
            prefix = f"document {number}: " if len(documents) > 1 else ""
            try:
                submissions += self._prepare(document, user, now, taken, faults.room)
            except BadInput as bad:
                faults.take(bad, in_document(prefix))
            if len(submissions) > _MAX_JOBS:
                raise BadInput.one(f"more than {_MAX_JOBS:,} jobs in one submission; submit them in parts")
        faults.check()
        return submissions

    def _prepare(
        self, document: dict[str, Any], user: str, now: float, taken: set[str], describe: int
    ) -> list[Submission]:
        """Validate one document and choose ids that are neither in use nor in *taken*, which gets them."""
        backend = self._loop.backend
        while True:
            suffix = ending(secrets.randbelow(ENDINGS))
            submissions = prepare(
                document, user=user, now=now, suffix=suffix, capabilities=backend.capabilities, describe=describe
            )
            ids = {submission.id for submission in submissions}
            free = all(not self._loop.is_taken(job_id) or self._replaceable(job_id, user) for job_id in ids)
            if free and not ids & taken:
                break
            if submissions[0].id == submissions[0].workload:
                raise self._id_taken(submissions[0], user)
        taken |= ids
        queues = [queue.name for queue in self._loop.engine.query.queue_values]
        for submission in submissions:
            check_job(submission.job, queues)
        return submissions

    def _classified(self, submissions: list[Submission]) -> list[Submission]:
        """Set the class of nodes that each job may use; not in a thread, because the backend may report a new class."""
        backend = self._loop.backend
        if not backend.capabilities.runs_manifests:
            return submissions
        return [
            msgspec.structs.replace(
                submission,
                job=msgspec.structs.replace(submission.job, node_class=backend.node_class(submission.document)),
            )
            for submission in submissions
        ]

    def _replaceable(self, job_id: str, user: str) -> JobRecord | None:
        """Return the job with this id if a new one may replace it: *user*'s own, cancelled or failed.

        A succeeded job stays until its TTL ends, because its checkpoints are its result.
        """
        record = self._loop.records.by_id.get(job_id)
        if record is None or record.result is None or record.user != user:
            return None
        return record if record.result["phase"] in ("Cancelled", "Failed") else None

    def _id_taken(self, submission: Submission, user: str) -> Refused:
        record = self._loop.records.by_id.get(submission.id)
        if record is None or record.ended is None or record.user != user:
            return Refused(
                f"there is a job {submission.id} already, and a {submission.kind} keeps its name; choose another name"
            )
        until = moment(record.ended + record.about.ttl_s)
        return Refused(
            f"{submission.id} has succeeded, and a {submission.kind} keeps its name, output and checkpoints until "
            f"{until}; choose another name"
        )

    async def _resolve_dependencies(self, submissions: list[Submission]) -> list[Submission]:
        """Replace names in `spec.after` by ids; dependencies that have succeeded are dropped."""
        by_workload: dict[str, list[str]] = {}
        for submission in submissions:
            by_workload.setdefault(submission.workload, []).append(submission.id)
        names = {name for submission in submissions for name in submission.job.after}
        known = await self._find(names, submissions[0].job.user)
        resolved: list[Submission] = []
        faults = Faults()
        hopeless, count = "", 0
        for submission in submissions:
            after: list[str] = []
            for name in submission.job.after:
                if name in by_workload and name != submission.workload:
                    after += by_workload[name]
                    continue
                record = known[name]
                if not isinstance(record, JobRecord):
                    faults.add("spec.after", str(record))
                elif record.result is None:
                    after.append(record.id)
                elif record.result["phase"] != "Succeeded":
                    hopeless = (
                        f"{submission.workload} would never start: it depends on {record.id}, which has ended as "
                        f"{record.result['phase']}; submit that again first, or remove it from spec.after"
                    )
            count += len(after)
            if count > _MAX_DEPENDENCIES:
                raise BadInput.one(f"more than {_MAX_DEPENDENCIES:,} dependencies in one submission", "spec.after")
            job = msgspec.structs.replace(submission.job, after=tuple(after))
            resolved.append(msgspec.structs.replace(submission, job=job))
        faults.check()
        if hopeless:
            raise Refused(hopeless)
        return resolved

    async def _find(self, names: set[str], user: str) -> dict[str, JobRecord | LevadaError]:
        """Find jobs by name, or the error for each name without a unique job; yields to other requests."""
        if len(names) > _MAX_NAMES:
            raise BadInput.one(f"names more than {_MAX_NAMES:,} different jobs in one submission", "spec.after")
        results: dict[str, JobRecord | LevadaError] = {}
        for name in names:
            try:
                results[name] = self._loop.records.find(name, user)
            except (NotFound, Refused) as error:
                results[name] = error
            await asyncio.sleep(0)
        return results

    async def _repeat_answer(self, earlier: RequestRow) -> list[JobView]:
        """Return the jobs of an earlier submission; those past their TTL as they ended.

        Raises Refused if a newer job has taken the id of one: it is not the job that was submitted with the key.
        """
        ids = msgspec.json.decode(earlier.answer, type=list[str])
        records = self._loop.records.by_id
        replaced = [job_id for job_id in ids if job_id in records and records[job_id].submitted != earlier.at]
        if replaced:
            raise Refused(f"{replaced[0]} of that submission was replaced by a newer job of its name; use a new key")
        gone = [job_id for job_id in ids if job_id not in records]
        past = {row.id: JobRecord.of(row).result for row in await self._loop.store.past_jobs(gone)} if gone else {}
        present = {job["id"]: job for job in await self._views(ids)}
        jobs = [present.get(job_id) or past.get(job_id) for job_id in ids]
        return [job for job in jobs if job is not None]

    async def _views(self, ids: Sequence[str]) -> list[JobView]:
        """Return views without queue positions, which are known after the next decision; yields to other requests."""
        now, records = self._loop.clock.now(), self._loop.records
        jobs: list[JobView] = []
        for begin in range(0, len(ids), _VIEWS_PER_SLICE):
            part = ids[begin : begin + _VIEWS_PER_SLICE]
            jobs += [self._loop.view(records.by_id[job_id], now, {}) for job_id in part if job_id in records.by_id]
            if begin + _VIEWS_PER_SLICE < len(ids):
                await asyncio.sleep(0)
        return jobs


def names_of(ids: Sequence[str]) -> str:
    """Format job ids for the audit log; at most 10 are named."""
    return " ".join(ids[:_MAX_AUDITED_NAMES]) + (" …" if len(ids) > _MAX_AUDITED_NAMES else "")


def _is_large(documents: Sequence[dict[str, Any]]) -> bool:
    """Whether documents are validated in a thread: several of them, an array, or many values."""
    spec = documents[0].get("spec")
    if len(documents) > 1 or (isinstance(spec, dict) and "array" in spec):
        return True
    values: list[Any] = [documents[0]]
    for value in values:
        if isinstance(value, dict | list):
            values += value.values() if isinstance(value, dict) else value
        if len(values) > _MAX_VALUES_ON_LOOP:
            return True
    return False
