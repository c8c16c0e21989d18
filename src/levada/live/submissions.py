"""How jobs come in: read, checked, written down, and only then said to be taken."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from levada.core.job import faults_of
from levada.errors import BadInput, Faults, LevadaError, NotFound, Refused, Unavailable, did_you_mean
from levada.jobfile.load import in_document
from levada.live.intake import ENDINGS, Prepared, ending, prepare
from levada.live.loop import Loop, Wish
from levada.live.records import DEFAULT_TTL_S, About, Record
from levada.live.store import Deed, RequestRow
from levada.live.views import moment

#: Jobs of one submission, those of arrays counted one by one: some 3 s, and 7 MB of an answer.
_MOST_AT_ONCE = 10_000
#: Values of a document that is checked on the loop: some milliseconds.
_MOST_ON_THE_LOOP = 1000
#: Jobs that a submission waits for: different names, each of which is looked for among all jobs, and in all.
_MOST_NAMES = 1_000
_MOST_DEPENDENCIES = 100_000
#: Jobs that are shown before others get their turn.
_AT_A_TIME = 200
#: Jobs of a submission that the audit log names.
_MOST_NAMED = 10


class Submissions:
    """Submissions, for `Service`."""

    loop: Loop
    #: Removes an ended job whose id another one takes.
    free_name: Callable[[Record], Awaitable[None]]

    def __init__(self) -> None:
        #: Submissions under way, by user and key: who sends the same again waits for the same answer.
        self._under_way: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    async def submit(
        self, documents: list[dict[str, Any]], *, user: str, key: str | None, deed: Deed | None = None
    ) -> list[dict[str, Any]]:
        """Takes jobs, all or none; the same *key* again gives the same jobs, with another body it is Refused.

        New jobs and the *deed* that they are for the audit log are written down together.
        """
        if key is None:
            return await self._views(await self._accept(documents, user, None, "", deed))
        # Who asks and goes away has asked: whoever comes with the same key waits for what becomes of it.
        asked = asyncio.create_task(self._once(documents, user, key, deed))
        asked.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(asked)

    async def _once(
        self, documents: list[dict[str, Any]], user: str, key: str, deed: Deed | None
    ) -> list[dict[str, Any]]:
        digest = hashlib.sha256(msgspec.json.encode(documents, order="deterministic")).hexdigest()
        async with self._under_way.setdefault((user, key), asyncio.Lock()):
            # First: whether the store has what it was given when it was lost is known when it is back, and not before.
            self.loop.check((user, key))
            before = await self.loop.store.request(user, key) if (user, key) in self.loop.keys else None
            if before is None:
                return await self._views(await self._accept(documents, user, key, digest, deed))
        if before.digest != digest:
            raise Refused(f"the key {key} was used for other jobs; use a new one for each submission")
        return await self._answered(before)

    async def _accept(
        self, documents: list[dict[str, Any]], user: str, key: str | None, digest: str, deed: Deed | None
    ) -> list[str]:
        self.loop.store.check_room()
        now = self.loop.clock.now()
        prepare = partial(self._prepared, documents, user, now)
        # Others get their turn while thousands of jobs are read.
        prepared = await self._depending(await asyncio.to_thread(prepare) if _is_large(documents) else prepare())
        ids = [each.id for each in prepared]
        self.loop.check()  # before anything is removed
        removed: list[str] = []
        for each in prepared:
            if (old := self._replaceable(each.id, user)) is not None:
                await self.free_name(old)
                removed.append(old.id)
        for each in prepared:
            # Once more: others may have come while this was read, or may be about to be written down.
            if self.loop.is_taken(each.id):
                raise self._doubled(each, user)
        records = [Record(each.id, -1, user, now, _about(each)) for each in prepared]

        def request() -> RequestRow:
            assert key is not None
            return RequestRow(user=user, key=key, digest=digest, answer=msgspec.json.encode(ids), at=now)

        wish = Wish(jobs=[each.job for each in prepared], records=records, request=None if key is None else request)
        if deed is not None:
            deed.detail, wish.deed = names_of(ids), deed
        try:
            await self.loop.grant(wish)
        except Unavailable as refused:
            if not removed:
                raise
            done = f"ended jobs of the same name were removed: {names_of(removed)}"
            raise type(refused)(f"{refused}; {done}") from None
        if deed is not None:
            deed.written = True
        return ids

    def _prepared(self, documents: Sequence[dict[str, Any]], user: str, now: float) -> list[Prepared]:
        found: list[Prepared] = []
        faults = Faults()
        taken: set[str] = set()
        for number, document in enumerate(documents, 1):
            prefix = f"document {number}: " if len(documents) > 1 else ""
            try:
                found += self._prepare(document, user, now, taken, faults.room)
            except BadInput as bad:
                faults.take(bad, in_document(prefix))
            if len(found) > _MOST_AT_ONCE:
                raise BadInput.one(f"more than {_MOST_AT_ONCE:,} jobs at once; send them in parts")
        faults.check()
        return found

    def _prepare(
        self, document: dict[str, Any], user: str, now: float, taken: set[str], describe: int
    ) -> list[Prepared]:
        while True:
            suffix = ending(secrets.randbelow(ENDINGS))
            in_place = self.loop.backend.capabilities.in_place
            made = prepare(document, user=user, now=now, suffix=suffix, in_place=in_place, describe=describe)
            free = all(not self.loop.is_taken(each.id) or self._replaceable(each.id, user) for each in made)
            if free and not any(each.id in taken for each in made):
                break
            if made[0].id == made[0].workload:
                raise self._doubled(made[0], user)
        taken.update(each.id for each in made)
        queues = [queue.name for queue in self.loop.engine.query.queue_values]
        for each in made:
            if each.job.queue not in queues:
                text = f"there is no queue {each.job.queue}"
                raise BadInput.one(
                    text + did_you_mean(each.job.queue, queues, "`levada queues` lists them"), "spec.queue"
                )
            for field, text in faults_of(each.job):
                raise BadInput.one(text, f"spec.{field}")
        return made

    def _replaceable(self, job_id: str, user: str) -> Record | None:
        """The job of this id where a new one may take its place: it was cancelled or failed, and is *user*'s own.

        One that has succeeded stays for its time in lists: its checkpoints are what it was run for.
        """
        record = self.loop.records.by_id.get(job_id)
        if record is None or record.result is None or record.user != user:
            return None
        return record if record.result["phase"] in ("Cancelled", "Failed") else None

    def _doubled(self, each: Prepared, user: str) -> Refused:
        record = self.loop.records.by_id.get(each.id)
        if record is None or record.ended is None or record.user != user:
            return Refused(f"there is a job {each.id} already, and a {each.kind} keeps its name; give it another")
        until = moment(record.ended + record.about.ttl_s)
        return Refused(
            f"{each.id} has succeeded, and a {each.kind} keeps its name, output and checkpoints until {until}; "
            "give the new one another name"
        )

    async def _depending(self, prepared: list[Prepared]) -> list[Prepared]:
        """The same, with what they come after by id; jobs that have succeeded need not be waited for."""
        here: dict[str, list[str]] = {}
        for each in prepared:
            here.setdefault(each.workload, []).append(each.id)
        known = await self._named({name for each in prepared for name in each.job.after}, prepared[0].job.user)
        done: list[Prepared] = []
        faults = Faults()
        hopeless, count = "", 0
        for each in prepared:
            before: list[str] = []
            for name in each.job.after:
                if name in here and name != each.workload:
                    before += here[name]
                    continue
                record = known[name]
                if not isinstance(record, Record):
                    faults.add("spec.after", str(record))
                elif record.result is None:
                    before.append(record.id)
                elif record.result["phase"] != "Succeeded":
                    hopeless = (
                        f"{each.workload} would never start: {record.id}, which it comes after, has ended as "
                        f"{record.result['phase']}; submit that again first, or leave it out of spec.after"
                    )
            count += len(before)
            if count > _MOST_DEPENDENCIES:
                raise BadInput.one(f"more than {_MOST_DEPENDENCIES:,} dependencies in one submission", "spec.after")
            job = msgspec.structs.replace(each.job, after=tuple(before))
            done.append(msgspec.structs.replace(each, job=job))
        faults.check()
        if hopeless:
            raise Refused(hopeless)
        return done

    async def _named(self, names: set[str], user: str) -> dict[str, Record | LevadaError]:
        """The jobs of these names, or why there is none; other requests get their turn in between."""
        if len(names) > _MOST_NAMES:
            raise BadInput.one(f"names more than {_MOST_NAMES:,} different jobs in one submission", "spec.after")
        found: dict[str, Record | LevadaError] = {}
        for name in names:
            try:
                found[name] = self.loop.records.find(name, user)
            except (NotFound, Refused) as unclear:
                found[name] = unclear
            await asyncio.sleep(0)
        return found

    async def _answered(self, before: RequestRow) -> list[dict[str, Any]]:
        """Jobs that were submitted before; those whose time in lists is over as they ended.

        Raises Refused where a newer job has taken the name of one: that one is not what was submitted with the key.
        """
        ids = msgspec.json.decode(before.answer, type=list[str])
        records = self.loop.records.by_id
        replaced = [each for each in ids if each in records and records[each].submitted != before.at]
        if replaced:
            raise Refused(f"{replaced[0]} of that submission was replaced by a newer job of its name; use a new key")
        gone = [each for each in ids if each not in records]
        past = {row.id: Record.of(row).result for row in await self.loop.store.past_jobs(gone)} if gone else {}
        there = {view["id"]: view for view in await self._views(ids)}
        found = [there.get(each) or past.get(each) for each in ids]
        return [view for view in found if view is not None]

    async def _views(self, ids: Sequence[str]) -> list[dict[str, Any]]:
        """Jobs that were just submitted: their place in line is known after the next decision."""
        now, records = self.loop.clock.now(), self.loop.records
        found: list[dict[str, Any]] = []
        for begin in range(0, len(ids), _AT_A_TIME):
            some = ids[begin : begin + _AT_A_TIME]
            found += [self.loop.view(records.by_id[each], now, {}) for each in some if each in records.by_id]
            if begin + _AT_A_TIME < len(ids):
                await asyncio.sleep(0)
        return found


def names_of(ids: Sequence[str]) -> str:
    """Jobs as the audit log names them."""
    return " ".join(ids[:_MOST_NAMED]) + (" …" if len(ids) > _MOST_NAMED else "")


def _is_large(documents: Sequence[dict[str, Any]]) -> bool:
    """Whether to read documents takes longer than others should wait: several, an array, or many values."""
    spec = documents[0].get("spec")
    if len(documents) > 1 or (isinstance(spec, dict) and "array" in spec):
        return True
    values: list[Any] = [documents[0]]
    for value in values:
        if isinstance(value, dict | list):
            values += value.values() if isinstance(value, dict) else value
        if len(values) > _MOST_ON_THE_LOOP:
            return True
    return False


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
