"""The one event loop: what happens goes to the engine, is written down, and only then has consequences.

Everything that is waiting when a turn begins goes into that turn, so that many requests share one commit. While the
store does not take a turn, no request is accepted and no command leaves. Requests of that turn are refused and taken
back, so that nothing is left of them; what has happened cannot be refused: its turn is tried again until it is stored.
Where the connection broke in the middle of a commit, the log tells afterwards whether the turn counts.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from levada.backends.clock import Clock
from levada.backends.protocol import Backend, Note, Report
from levada.core.batch import JobBatch
from levada.core.commands import Apply, Command, Decide, Faulted, JobsEnded, StopStray, Wake
from levada.core.events import (
    Decided,
    DecideFailed,
    Event,
    JobsCancelled,
    JobsSubmitted,
    OperationFailed,
    Progress,
    Tick,
)
from levada.core.job import Job, Phase
from levada.core.plan import Op, OpKind
from levada.engine import Engine
from levada.errors import InternalError, LevadaError, Unavailable, Unresolved
from levada.live import faults, snapshot, turn, views
from levada.live.broadcast import Broadcast
from levada.live.decided import Decisions
from levada.live.errands import Errands
from levada.live.faults import FaultLog
from levada.live.records import Record, Records
from levada.live.savepoint import Savepoint
from levada.live.store import Changes, Deed, Lease, LeaseLost, RequestRow, Store, StoreTrouble, Unconfirmed
from levada.live.story import End, Story
from levada.live.thinking import think

_log = logging.getLogger(__name__)

#: Seconds between two tries of what the store refused.
_RETRY_S = 1.0
#: A snapshot is taken after so many turns: a start replays at most these.
SNAPSHOT_TURNS = 500
#: Plans that can be asked for.
_REMEMBERED = 500
#: No timer is set for longer.
_LONGEST_SLEEP_S = 3600.0


#: Told to all whose request is not stored and never will be.
_NOT_DONE = "nothing of it was done"
#: Told where a commit got no answer.
_UNRESOLVED = (
    "it is not known yet whether it was stored: ask again with the same key, or look when the database is back"
)


class Wish(msgspec.Struct, kw_only=True):
    """Something that wants to become part of a turn."""

    events: Sequence[Event] = ()
    #: Jobs that come, with their records.
    jobs: Sequence[Job] = ()
    records: Sequence[Record] = ()
    notes: Sequence[Note] = ()
    #: Makes the row that remembers a submission, once it is part of a turn.
    request: Callable[[], RequestRow] | None = None
    #: What it is for the audit log.
    deed: Deed | None = None
    done: asyncio.Future[None] | None = None


class Loop:
    """Owner of the engine while the server runs."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        lease: Lease,
        backend: Backend,
        clock: Clock,
        records: Records,
        last_line: int,
    ) -> None:
        self.engine, self.store, self.backend, self.clock, self.records = engine, store, backend, clock, records
        self.lease = lease
        self.broadcast = Broadcast(store, last_line)
        #: Why the store takes nothing, if so.
        self.trouble = ""
        self.turns = self.decisions = 0
        #: The last decisions and plans, the newest last.
        self.decided = Decisions()
        self.plans: list[dict[str, Any]] = []
        #: Faults of the engine.
        self.faults = FaultLog()
        #: (user, key) of submissions that the store remembers.
        self.keys: set[tuple[str, str]] = set()
        #: Hears of every turn that is stored.
        self.stored: Callable[[Lease], None] = lambda _lease: None
        #: Those of which it is not known whether the store has them.
        self._unresolved: set[tuple[str, str]] = set()
        self._story = Story(engine, records, last_line)
        self._wishes: list[Wish] = []
        #: Ids of jobs among them.
        self._coming: set[str] = set()
        #: Ids of jobs that the store may have: their turn is taken back until the log tells.
        self._unclear: set[str] = set()
        self._progress: dict[int, float] = {}
        self._bell = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._thoughts: set[asyncio.Task[None]] = set()
        self._strays: dict[int, tuple[str, int]] = {}
        self._errands = Errands(self.apply, lambda: bool(self._wishes) or self._ahead)
        #: Turns that a start would replay now.
        self.since_snapshot = 0
        #: Snapshots taken since the server started.
        self.snapshots = 0
        self._stopping = False
        #: The engine has taken a turn that is not written down: what it is now must not be kept.
        self._ahead = False

    # --- from outside -----------------------------------------------------------------------------------------------

    def check(self, key: tuple[str, str] | None = None) -> None:
        """Raises Unavailable where nothing can be stored now; Unresolved for (user, *key*) that may be stored."""
        if key in self._unresolved:
            raise Unresolved(f"{self.trouble}; {_UNRESOLVED}")
        if self.trouble or self._stopping:
            raise Unavailable(f"{self.trouble or 'the server is stopping'}; {_NOT_DONE}")

    async def tell(
        self,
        *events: Event,
        notes: Sequence[Note] = (),
    ) -> None:
        """Returns when all of it is written down and the engine has answered; raises Unavailable."""
        await self.grant(Wish(events=events, notes=notes))

    async def grant(self, wish: Wish) -> None:
        """As `tell`, of whatever is wished for."""
        self.check()
        wish.done = asyncio.get_running_loop().create_future()
        self._wish(wish)
        await wish.done

    def hear(self, report: Report) -> None:
        """Takes what a backend reports. Progress waits for the next turn, in which only the latest counts."""
        events = []
        # A backend that is asked anew tells ends again; what is over has been told of.
        notes = tuple(note for note in report.notes if not self._is_over(note.job))
        for event in report.events:
            if isinstance(event, Progress):
                self._progress.update(zip(event.number.tolist(), event.steps.tolist(), strict=True))
            else:
                events.append(event)
        if events or notes:
            self._wish(Wish(events=events, notes=notes))
        elif self._progress:
            self._bell.set()

    def _is_over(self, job: str) -> bool:
        record = self.records.by_id.get(job)
        return record is not None and record.result is not None

    def expect_strays(self, seen: Mapping[str, Any]) -> None:
        """What a backend was seen to run: the engine may find that some of it should not."""
        self._strays = {each.number: (job, each.generation) for job, each in seen.items()}

    def is_taken(self, job_id: str) -> bool:
        """Whether a job has this id, or is about to."""
        return job_id in self.records.by_id or job_id in self._coming or job_id in self._unclear

    def _wish(self, wish: Wish) -> None:
        self._wishes.append(wish)
        self._coming.update(record.id for record in wish.records)
        self._bell.set()

    # --- running ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Works until `stop`; raises LeaseLost where somebody else acts now."""
        listener = asyncio.create_task(self._listen())
        listener.add_done_callback(lambda _: self._bell.set())
        errands = asyncio.create_task(self._errands.run(self._bell.set))
        try:
            while not (self._stopping and not self._wishes and not self._errands):
                await self._bell.wait()
                self._bell.clear()
                if listener.done():
                    listener.result()  # a server that hears nothing of its jobs must not go on
                    raise LevadaError("the backend has nothing more to report, and nobody stopped it")
                if self._wishes or self._progress:
                    await self.turn()
        finally:
            listener.cancel()
            errands.cancel()
            for task in self._thoughts:
                task.cancel()
            if self._timer is not None:
                self._timer.cancel()
            _tell_off(self._wishes, "the server is stopping")
            await asyncio.gather(listener, errands, return_exceptions=True)

    def stop(self) -> None:
        """Takes nothing more, finishes what was taken, and ends."""
        self._stopping = True
        self._bell.set()

    async def _listen(self) -> None:
        async for report in self.backend.reports():
            self.hear(report)

    async def turn(self) -> None:
        """One turn of the engine with all that waits."""
        wishes, self._wishes = self._wishes, []
        try:
            while not await self._turn(wishes):
                # Requests are refused; what happened has happened all the same.
                wishes = [wish for wish in wishes if wish.done is None]
        except BaseException:
            # It is not done and will not be: after a restart the engine knows nothing of it.
            _tell_off(wishes, "the server had to stop; look what is there before you ask again")
            raise

    async def _turn(self, wishes: list[Wish]) -> bool:
        """Whether the turn was stored; if not, everything is as it was before it, and its requests are refused."""
        progress, self._progress = self._progress, {}
        savepoint = self._savepoint(wishes)
        now = self.clock.now()
        told = _told(wishes, now)
        query = self.engine.query
        next_number = query.next_number
        self._number(wishes, next_number)
        notes = [note for wish in wishes for note in wish.notes]
        before_ends = self._story.begin(told, notes, now)
        moved = self._story.moved(progress, now)
        self._ahead = True
        refused = query.refused
        commands = self.engine.handle(*moved, *told)
        if query.refused > refused:
            _log.warning("refused event: %s", query.last_rejection)
        after, before = query.revision, query.revision - len(told)
        self.turns += 1
        asks = [command.detached() for command in commands if isinstance(command, Decide)]
        ops = [op for command in commands if isinstance(command, Apply) for op in self.engine.ops(command.plan)]
        ends = [command for command in commands if isinstance(command, JobsEnded)]
        ended = self._story.ended(ends, before_ends)
        faulted = [command for command in commands if isinstance(command, Faulted)]
        self.faults.note(faulted)
        # For a version that does not fail on them: they were never there.
        lost = [(record.number, Phase.CANCELLED) for record in _lost(wishes, faulted)] if faulted else []
        wishes = self._without_refused(wishes, ended, _failed(wishes, faulted, len(moved)))
        ids = {number: record.id for number, record in self.records.by_number.items()} if faulted else {}
        lines = self._story.lines([*notes, *faults.notes(faulted, ids)], ended, now)
        kept = self.faults.with_these(faulted, now, ids) if faulted else self.faults.kept
        if told or asks or ops or ended or lines:
            entry = turn.encode(
                before,
                after,
                told or (Tick(at=now),),
                query.asked_about if asks else None,
                next_number,
                self._story.standings(),
                (
                    *(pair for each in ends for pair in zip(each.number.tolist(), each.phase.tolist(), strict=True)),
                    *lost,
                ),
            )
            changes = Changes(
                at=now,
                entry=entry,
                jobs=[record.row() for wish in wishes for record in wish.records],
                ended=[(record.number, at, msgspec.json.encode(result)) for record, at, result in ended],
                history=lines,
                requests=[wish.request() for wish in wishes if wish.request is not None],
                deeds=[wish.deed.row(now) for wish in wishes if wish.deed is not None],
                settings={faults.SETTING: msgspec.json.encode(kept).decode()} if faulted else {},
            )
            if not await self._append(changes, wishes, savepoint):
                self._progress = {**progress, **self._progress}
                return False
            self.keys.update((row.user, row.key) for row in changes.requests)
            self._story.is_written(ended)
            self.broadcast.publish(lines)
        self.faults.kept = kept
        self._ahead = False
        for wish in wishes:
            if wish.done is not None and not wish.done.done():
                wish.done.set_result(None)
        self._keep(told, ops, now)
        self._carry_out(commands, asks, ops)
        await self._snapshot_if_due()
        return True

    # --- parts of a turn --------------------------------------------------------------------------------------------

    def _number(self, wishes: Sequence[Wish], first: int) -> None:
        """Jobs that come get the next numbers, as the engine will give them."""
        for wish in wishes:
            for record in wish.records:
                record.number, first = first, first + 1
                self.records.add(record)
                self._coming.discard(record.id)

    def _without_refused(self, wishes: list[Wish], ended: Sequence[End], failed: Mapping[int, str]) -> list[Wish]:
        """These without the requests that *failed*, by their place in *wishes*, and without the jobs that the engine
        did not take under the numbers that they have here."""
        over = {record.id for record, _, _ in ended}
        query, taken = self.engine.query, []
        for place, wish in enumerate(wishes):
            there = [each for each in wish.records if query.number_of(each.id) == each.number]
            absent = [each for each in wish.records if each not in there and each.id not in over]
            if not absent and place not in failed:
                taken.append(wish)
                continue
            why = failed.get(place) or query.last_rejection or "its number is another's"
            if absent:
                _log.error("the engine does not take %s: %s", ", ".join(each.id for each in absent[:3]), why)
            for each in wish.records:
                self.records.drop(each)
            if there:
                # A submission counts as a whole or not at all.
                numbers_there = np.array([each.number for each in there], np.int64)
                self._wish(Wish(events=(JobsCancelled(at=0.0, number=numbers_there),)))
            if wish.done is not None and not wish.done.done():
                wish.done.set_exception(InternalError(f"the engine does not take it: {why}"))
        return taken

    def _savepoint(self, wishes: Sequence[Wish]) -> Savepoint | None:
        """Where a turn with requests can be taken back to; None where it has none, so that nothing can be refused."""
        if all(wish.done is None for wish in wishes):
            return None
        fresh = [record for wish in wishes for record in wish.records]
        return Savepoint(self.engine, self._story, self.records, fresh)

    async def _append(self, changes: Changes, wishes: Sequence[Wish], savepoint: Savepoint | None) -> bool:
        """Whether the turn is stored. Without requests it is tried until it is; with them it is taken back."""
        stored = None
        while stored is None:
            try:
                self.lease = await self.store.append(self.lease, changes)
                stored = True
            except StoreTrouble as trouble:
                if savepoint is not None:
                    stored = await self._resolve(trouble, changes, wishes, savepoint)
                else:
                    await self._wait_for_store(trouble)
        if self.trouble:
            _log.warning("the store works again")
            self.trouble = ""
        self._unresolved.clear()
        self.since_snapshot += stored
        self.stored(self.lease)
        return stored

    async def _resolve(
        self, trouble: StoreTrouble, changes: Changes, wishes: Sequence[Wish], savepoint: Savepoint
    ) -> bool:
        """Takes a turn back that the store did not take, and waits until the store answers; whether it took it after
        all, as it may where the connection broke in the middle of the commit."""
        savepoint.undo()
        unsure = isinstance(trouble, Unconfirmed)
        self._unclear = {record.id for wish in wishes for record in wish.records} if unsure else set()
        if not unsure:
            _tell_off(wishes, f"{trouble}; {_NOT_DONE}")
        while True:
            try:
                stored = await self.store.is_appended(self.lease, changes)
                break
            except StoreTrouble as still:
                if unsure:
                    self._unresolved = {(row.user, row.key) for row in changes.requests}
                    _tell_off(wishes, f"{trouble}; {_UNRESOLVED}", Unresolved)
                await self._wait_for_store(still)
        self._unclear = set()
        if stored:
            savepoint.redo()
            self.lease = msgspec.structs.replace(self.lease, sequence=self.lease.sequence + 1)
        else:
            _tell_off(wishes, f"{trouble}; {_NOT_DONE}")
        return stored

    async def _wait_for_store(self, trouble: StoreTrouble) -> None:
        """A pause before the next try. No request waits for a store that may be away for long."""
        if not self.trouble:
            _log.error("%s", trouble)
        self.trouble = str(trouble)
        late = [wish for wish in self._wishes if wish.done is not None]
        self._coming.clear()
        self._wishes = [wish for wish in self._wishes if wish.done is None]
        _tell_off(late, f"{self.trouble}; {_NOT_DONE}")
        if self._stopping:
            raise trouble  # whoever asked has been told, and what happened is told again after the next start
        await asyncio.sleep(_RETRY_S)

    def _carry_out(self, commands: Sequence[Command], asks: Sequence[Decide], ops: Sequence[Op]) -> None:
        self._errands.add(ops)
        for command in commands:
            match command:
                case Wake():
                    self._set_timer(command.at)
                case StopStray():
                    self._errands.add(self._stops(command.number))
                case _:
                    pass
        for question in asks:
            self.decisions += 1
            task = asyncio.create_task(self._think(question))
            self._thoughts.add(task)
            task.add_done_callback(self._thoughts.discard)

    async def apply(self, op: Op) -> None:
        """Gives an operation to the backend; one that it does not take has failed."""
        record = self.records.by_id.get(op.job)
        launch = None if record is None else record.about.launch
        try:
            if launch is None and op.kind != OpKind.STOP:
                raise LevadaError("nothing is known of what it runs")
            if launch is not None:
                launch = msgspec.structs.replace(launch, seconds=self._seconds_left(op.job))
            await self.backend.apply(op, launch)
        except Exception as broken:
            why = str(broken) or type(broken).__name__
            _log.warning("%s: %s", op.job, why)
            failed = OperationFailed(
                at=0.0, number=np.array([op.number]), generation=np.array([op.generation]), why=why
            )
            self._wish(Wish(events=(failed,), notes=(Note(job=op.job, type="trouble", text=why),)))

    def _seconds_left(self, job: str) -> float | None:
        """What is left of the job's time limit; None where it has none."""
        found = self.engine.query.job(job)
        if found is None or found.time_limit == math.inf:
            return None
        running = max(self.clock.now() - found.since, 0.0) if found.observed else 0.0
        return max(found.time_limit - found.running_s - running, 0.0)

    def _stops(self, strays: Iterable[int]) -> Iterator[Op]:
        for number in strays:
            if number in self._strays:
                job, generation = self._strays[number]
                yield Op(job=job, number=number, kind=OpKind.STOP, generation=generation, grant=None)

    async def _think(self, question: Decide) -> None:
        result = await think(question, self.engine.query.options.decide_limit_s)
        self._wish(Wish(events=(result,)))

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at < math.inf:
            pause = min(max(0.0, at - self.clock.now()), _LONGEST_SLEEP_S)
            self._timer = asyncio.get_running_loop().call_later(pause, self._ring, at)

    def _ring(self, at: float) -> None:
        if self.clock.now() < at:
            self._set_timer(at)
        else:
            self._wish(Wish(events=(Tick(at=0.0),)))

    async def _snapshot_if_due(self) -> None:
        if self.since_snapshot >= SNAPSHOT_TURNS:
            await self.save_snapshot()

    async def save_snapshot(self) -> None:
        """Keeps the whole state, so that the next start has little to replay. That it fails costs only time."""
        if self._ahead:
            return
        self.since_snapshot = 0
        try:
            body = await asyncio.to_thread(snapshot.seal, snapshot.pack(self.engine))
            await self.store.save_snapshot(self.lease, self.clock.now(), body)
            self.snapshots += 1
        except LeaseLost:
            raise
        except LevadaError as trouble:
            _log.warning("no snapshot: %s", trouble)

    # --- looking ----------------------------------------------------------------------------------------------------

    def view(self, record: Record, now: float | None = None, places: Mapping[int, int] | None = None) -> dict[str, Any]:
        """A job as users see it."""
        if record.result is not None:
            return record.result
        if record.id in self._story.leaving:
            return self._story.leaving[record.id]
        query = self.engine.query
        job = query.job(record.id)
        if job is None:
            return views.plain_job(record)
        at = self.clock.now() if now is None else now
        workers = self.backend.workers(record.id) if job.held else []
        place = query.position(job.number) if places is None else places.get(job.number)
        return views.living_job(record, query, job, at, workers, place)

    def glance(self, record: Record) -> tuple[str, str]:
        """Phase and queue of a job as its view has them, for a fraction of its price."""
        job = self.engine.query.job(record.id)
        if job is None or record.result is not None or record.id in self._story.leaving:
            view = self.view(record)
            return view["phase"], view["queue"]
        return Phase.label(job.phase), self.engine.query.queue_of(job)

    def _keep(self, told: Sequence[Event], ops: Sequence[Op], now: float) -> None:
        """The last decisions and operations, for who asks what was done."""
        for event in told:
            if isinstance(event, Decided | DecideFailed):
                self.decided.add(self.engine.query, event, now)
        if ops:
            revision = self.engine.query.revision
            operations = [views.operation(op) for op in ops]
            self.plans.append({"revision": revision, "time": views.moment(now), "operations": operations})
        del self.plans[:-_REMEMBERED]


def _told(wishes: Sequence[Wish], now: float) -> tuple[Event, ...]:
    """What the engine is told of: all jobs that come as one event, which costs little more than one of them alone."""
    events = [msgspec.structs.replace(event, at=now) for wish in wishes for event in wish.events]
    jobs = [job for wish in wishes for job in wish.jobs]
    return (JobsSubmitted(at=now, jobs=JobBatch.of(jobs)), *events) if jobs else tuple(events)


def _failed(wishes: Sequence[Wish], faulted: Sequence[Faulted], before: int) -> dict[int, str]:
    """Why requests failed, by their place in *wishes*; so many events were handled *before* those of `_told`."""
    owners = [place for place, wish in enumerate(wishes) for _ in wish.events]
    ids = {job.id: place for place, wish in enumerate(wishes) for job in wish.jobs}
    found: dict[int, str] = {}
    for each in faulted:
        at = each.position - before - (len(ids) > 0)
        if isinstance(each.event, JobsSubmitted):
            places = {ids[name] for name in each.event.jobs.id if name in ids}
        else:
            places = {owners[at]} if each.position >= before and 0 <= at < len(owners) else set()
        for place in places:
            found.setdefault(place, f"internal error, undone: {each.error}; `levada doctor` tells more")
    return {place: why for place, why in found.items() if wishes[place].done is not None}


def _lost(wishes: Sequence[Wish], faulted: Sequence[Faulted]) -> list[Record]:
    """Jobs whose submission failed."""
    names = {name for each in faulted if isinstance(each.event, JobsSubmitted) for name in each.event.jobs.id}
    return [record for wish in wishes for record in wish.records if record.id in names]


def _tell_off(wishes: Sequence[Wish], why: str, kind: type[Unavailable] = Unavailable) -> None:
    """Whoever waits for these waits no longer."""
    for wish in wishes:
        if wish.done is not None and not wish.done.done():
            wish.done.set_exception(kind(why))
