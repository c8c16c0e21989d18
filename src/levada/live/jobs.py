"""What users do to jobs: submit, change, cancel, look at them."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import numpy as np

from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.job import LARGEST_PRIORITY, LARGEST_SIZE, faults_of
from levada.errors import BadInput, Fault, NotFound, Refused, did_you_mean
from levada.live import views
from levada.live.intake import SUFFIX_LENGTH, Prepared, prepare
from levada.live.loop import Loop
from levada.live.records import DEFAULT_TTL_S, About, Record
from levada.live.store import RequestRow

_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
#: Jobs of one submission.
_MOST_AT_ONCE = 100_000
_CHANGES = {"min", "max", "priority", "weight", "queue"}


class Jobs:
    """Jobs, for `Service`."""

    loop: Loop

    def __init__(self) -> None:
        #: Submissions under way, by user and key: who sends the same again waits for the same answer.
        self._under_way: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    # --- submit -----------------------------------------------------------------------------------------------------

    async def submit(self, documents: list[dict[str, Any]], *, user: str, key: str | None) -> list[dict[str, Any]]:
        """Takes jobs, all or none; the same *key* again gives the same jobs, with another body it is Refused."""
        if key is None:
            return self._views(await self._accept(documents, user, None, ""))
        digest = hashlib.sha256(msgspec.json.encode(documents, order="deterministic")).hexdigest()
        turn = self._under_way.setdefault((user, key), asyncio.Lock())
        async with turn:
            # First: a submission that was put off is in the store when the trouble is over, and not before.
            self.loop.check()
            before = await self.loop.store.request(user, key) if (user, key) in self.loop.keys else None
            if before is None:
                ids = await self._accept(documents, user, key, digest)
                self.loop.keys.add((user, key))
                return self._views(ids)
        if before.digest != digest:
            raise Refused(f"the key {key} was used for other jobs; use a new one for each submission")
        return self._views(msgspec.json.decode(before.answer, type=list[str]))

    async def _accept(self, documents: list[dict[str, Any]], user: str, key: str | None, digest: str) -> list[str]:
        self.loop.store.check_room()
        now = self.loop.clock.now()
        prepared = self._prepared(documents, user, now)
        ids = [each.id for each in prepared]
        records = [Record(each.id, -1, user, now, _about(each)) for each in prepared]

        def request() -> RequestRow:
            assert key is not None
            return RequestRow(user=user, key=key, digest=digest, answer=msgspec.json.encode(ids), at=now)

        event = ev.JobsSubmitted(at=now, jobs=JobBatch.of([each.job for each in prepared]))
        await self.loop.tell(event, records=records, request=None if key is None else request)
        return ids

    def _prepared(self, documents: Sequence[dict[str, Any]], user: str, now: float) -> list[Prepared]:
        found: list[Prepared] = []
        faults: list[Fault] = []
        taken: set[str] = set()
        for number, document in enumerate(documents, 1):
            prefix = f"document {number}: " if len(documents) > 1 else ""
            try:
                found += self._prepare(document, user, now, taken)
            except BadInput as bad:
                faults += [
                    Fault(prefix + fault.path if fault.path else prefix.rstrip(": "), fault.text)
                    for fault in bad.faults
                ]
            if len(found) > _MOST_AT_ONCE:
                raise BadInput.one(f"more than {_MOST_AT_ONCE:,} jobs at once; send them in parts")
        if not faults:
            found, faults = self._depending(found)
        if faults:
            raise BadInput(faults)
        return found

    def _prepare(self, document: dict[str, Any], user: str, now: float, taken: set[str]) -> list[Prepared]:
        while True:
            suffix = "".join(secrets.choice(_CHARACTERS) for _ in range(SUFFIX_LENGTH))
            made = prepare(document, user=user, now=now, suffix=suffix)
            doubled = [each.id for each in made if each.id in self.loop.records.by_id or each.id in taken]
            if not doubled:
                break
            if made[0].id == made[0].workload:
                raise Refused(
                    f"there is a job {made[0].id} already, and a {made[0].kind} keeps its name; give it another"
                )
        taken.update(each.id for each in made)
        queues = list(self.loop.engine.state.world.queues.names)
        for each in made:
            if each.job.queue not in queues:
                text = f"there is no queue {each.job.queue}"
                raise BadInput.one(
                    text + did_you_mean(each.job.queue, queues, "`levada queues` lists them"), "spec.queue"
                )
            for field, text in faults_of(each.job):
                raise BadInput.one(text, f"spec.{field}")
        return made

    def _depending(self, prepared: list[Prepared]) -> tuple[list[Prepared], list[Fault]]:
        """The same, with what they come after by id; jobs that have succeeded need not be waited for."""
        here: dict[str, list[str]] = {}
        for each in prepared:
            here.setdefault(each.workload, []).append(each.id)
        done: list[Prepared] = []
        faults: list[Fault] = []
        for each in prepared:
            before: list[str] = []
            for name in each.job.after:
                if name in here and name != each.workload:
                    before += here[name]
                    continue
                try:
                    record = self.loop.records.find(name, each.job.user)
                except (NotFound, Refused) as unclear:
                    faults.append(Fault("spec.after", str(unclear)))
                    continue
                if record.result is None:
                    before.append(record.id)
                elif record.result["phase"] != "Succeeded":
                    faults.append(Fault("spec.after", f"{record.id} has ended as {record.result['phase']}"))
            job = msgspec.structs.replace(each.job, after=tuple(before))
            done.append(msgspec.structs.replace(each, job=job))
        return done, faults

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
            if not after.isdigit():
                raise BadInput.one("cursor: was not given out by this server; begin without one")
            begin = int(after)
        state, now = self.loop.engine.state, self.loop.clock.now()
        places = views.positions(state)
        found: list[dict[str, Any]] = []
        for number in sorted(self.loop.records.by_number):
            record = self.loop.records.by_number[number]
            if number <= begin or (user is not None and record.user != user):
                continue
            if any(record.about.labels.get(name) != value for name, value in labels.items()):
                continue
            view = self.loop.view(record, now, places)
            if (phases is not None and view["phase"] not in phases) or (queue is not None and view["queue"] != queue):
                continue
            if len(found) == limit:
                return found, str(self.loop.records.by_id[found[-1]["id"]].number)
            found.append(view)
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

    def _views(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Jobs that were just submitted: their place in line is known after the next decision."""
        now, records = self.loop.clock.now(), self.loop.records
        return [self.loop.view(records.by_id[each], now, {}) for each in ids if each in records.by_id]

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
        update = self._checked(record, changes)
        await self.loop.tell(ev.JobsUpdated(at=0.0, updates=(update,)))
        return self.loop.view(record)

    async def scale(self, job_id: str, workers: int) -> dict[str, Any]:
        """Fixes a job's size: it has that many workers, neither more nor less, until its range is changed."""
        return await self.update(job_id, {"min": workers, "max": workers})

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
            least = known.get("min", int(state.world.table.min[slot]))
            most = known.get("max", int(state.world.table.max[slot]))
            if not 1 <= least <= LARGEST_SIZE:
                faults.append(Fault("min", f"must be 1 to {LARGEST_SIZE:,}"))
            elif not least <= most <= LARGEST_SIZE:
                where = "max" if "max" in known else "min"
                faults.append(Fault(where, f"min ({least}) must not be above max ({most})"))
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
        return record


def _about(each: Prepared) -> About:
    return About(
        workload=each.workload,
        kind=each.kind,
        launch=each.launch,
        document=each.document,
        labels=each.labels,
        notify=each.notify,
        ttl_s=DEFAULT_TTL_S if each.ttl_s is None else each.ttl_s,
    )
