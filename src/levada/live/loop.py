"""The event loop of a server: each turn is stored before it takes effect.

All requests that wait when a turn begins become part of it, so that they share one commit. While the store does not
accept a turn, the loop accepts no request and executes no command. It undoes a turn that contains requests and refuses
them; a turn of reports only cannot be refused, and the loop retries its append until it succeeds. After a connection
that broke during a commit, the log decides whether the turn counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from levada.api.types import JobView, PlanView
from levada.backends.clock import Clock
from levada.backends.protocol import ClusterBackend, Note, Report
from levada.core.commands import Apply, Decide, Faulted, JobsEnded
from levada.core.events import Decided, DecideFailed, Event, JobsCancelled, Progress, QueuesChanged, Tick
from levada.core.job import Phase
from levada.core.plan import Op
from levada.engine import Engine
from levada.errors import InternalError, LevadaError, Unavailable, Unresolved
from levada.live import fault_log, log_entry, snapshot, views
from levada.live.broadcast import Broadcast
from levada.live.decision_history import Decisions
from levada.live.executor import CommandExecutor
from levada.live.fault_log import FaultLog
from levada.live.history import End, HistoryWriter
from levada.live.records import JobRecord, JobRecords
from levada.live.requests import Request, engine_events, fail_waiters, faulted_requests, faulted_submissions
from levada.live.store import Changes, LeaseLost, Store, StoreError, StoreLease, Unconfirmed

_log = logging.getLogger(__name__)

#: Seconds between two attempts to append a turn.
_RETRY_S = 1.0
#: Turns between two snapshots; a start replays at most this many.
SNAPSHOT_TURNS = 500
#: Plans that are kept for users.
_MAX_PLANS = 500

#: Error of requests that are not stored.
_NOT_DONE = "the request had no effect; retry later"
#: Error of requests whose commit got no answer.
_UNRESOLVED = (
    "not confirmed yet whether it was stored. Do not resubmit: look again when the database is back, or repeat the "
    "request with the same key"
)


class Savepoint:
    """Engine, history and records before a turn, to undo the turn. Costs O(active jobs + devices)."""

    def __init__(
        self, engine: Engine, history: HistoryWriter, records: JobRecords, new_records: Sequence[JobRecord]
    ) -> None:
        """*new_records*: the jobs that the turn adds to *records*."""
        self._engine, self._history, self._records, self._new_records = engine, history, records, new_records
        self._other = engine.mark(), history.position()

    def undo(self) -> None:
        """Restore the state before the turn."""
        self._swap()
        for record in self._new_records:
            self._records.drop(record)

    def redo(self) -> None:
        """Reverse `undo`, because the turn was stored after all."""
        self._swap()
        for record in self._new_records:
            self._records.add(record)

    def _swap(self) -> None:
        engine_mark, history_mark = self._other
        self._engine.swap(engine_mark)
        self._other = engine_mark, self._history.position()
        self._history.restore(history_mark)


class Loop:
    """Owner of the engine while the server runs."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        lease: StoreLease,
        backend: ClusterBackend,
        clock: Clock,
        records: JobRecords,
        last_line: int,
    ) -> None:
        self.engine, self.store, self.backend, self.clock, self.records = engine, store, backend, clock, records
        self.lease = lease
        self.broadcast = Broadcast(store, last_line)
        #: Why the store does not accept turns; empty when it does.
        self.trouble = ""
        self.turns = self.decisions = 0
        #: The last decisions and plans, newest last.
        self.decision_history = Decisions()
        self.plans: list[PlanView] = []
        #: Faults of the engine.
        self.faults = FaultLog()
        #: (user, key) of stored submissions.
        self.keys: set[tuple[str, str]] = set()
        #: Called after every stored turn.
        self.on_stored: Callable[[StoreLease], None] = lambda _lease: None
        #: Called with every report of the backend, after its events are queued; and when queues have changed.
        self.on_report: Callable[[Report], None] = lambda _report: None
        self.on_queues_changed: Callable[[], None] = lambda: None
        #: (user, key) of submissions whose commit got no answer.
        self._unconfirmed_keys: set[tuple[str, str]] = set()
        #: Ids of jobs whose commit got no answer; their turn is undone until the log decides.
        self._unconfirmed_ids: set[str] = set()
        self._history = HistoryWriter(engine, records, last_line)
        self._requests: list[Request] = []
        #: Ids of jobs in `_requests`.
        self._requested_ids: set[str] = set()
        #: Latest steps by job number, for the next turn.
        self._progress: dict[int, float] = {}
        self._wakeup = asyncio.Event()
        self.executor = CommandExecutor(
            engine, backend, clock, records, self._enqueue, lambda: bool(self._requests) or self._uncommitted
        )
        #: Turns since the last snapshot, which a start replays.
        self.since_snapshot = 0
        #: Snapshots taken since the server started.
        self.snapshots = 0
        self._stopping = False
        #: The engine is ahead of the log by one turn: its state must not become a snapshot.
        self._uncommitted = False

    # --- requests ---------------------------------------------------------------------------------------------------

    def check(self, key: tuple[str, str] | None = None) -> None:
        """Raise Unavailable if nothing can be stored now; Unresolved if the store may already have (user, *key*)."""
        if key in self._unconfirmed_keys:
            raise Unresolved(f"{self.trouble}; {_UNRESOLVED}")
        if self.trouble or self._stopping:
            raise Unavailable(f"{self.trouble or 'the server is stopping'}; {_NOT_DONE}")

    async def apply(self, *events: Event, notes: Sequence[Note] = ()) -> None:
        """Run a turn with these events; returns when it is stored, raises Unavailable."""
        await self.submit(Request(events=events, notes=notes))

    async def submit(self, request: Request) -> None:
        """Run a turn with this request; returns when it is stored, raises Unavailable."""
        self.check()
        request.done = asyncio.get_running_loop().create_future()
        self._enqueue(request)
        await request.done

    def observe(self, report: Report) -> None:
        """Queue a report of the backend; of several progress reports only the latest counts."""
        events = []
        # A backend that was reopened repeats ends of jobs; drop those that are stored.
        notes = tuple(note for note in report.notes if not self._has_ended(note.job))
        for event in report.events:
            if isinstance(event, Progress):
                self._progress.update(zip(event.number.tolist(), event.steps.tolist(), strict=True))
            else:
                events.append(event)
        if events or notes:
            self._enqueue(Request(events=events, notes=notes))
        elif self._progress:
            self._wakeup.set()
        self.on_report(report)

    def _has_ended(self, job: str) -> bool:
        record = self.records.by_id.get(job)
        return record is not None and record.result is not None

    def is_taken(self, job_id: str) -> bool:
        """Whether a job, a waiting request or an unconfirmed turn has this id."""
        return job_id in self.records.by_id or job_id in self._requested_ids or job_id in self._unconfirmed_ids

    def _enqueue(self, request: Request) -> None:
        self._requests.append(request)
        self._requested_ids.update(record.id for record in request.records)
        self._wakeup.set()

    # --- turns ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run turns until `stop`; raises LeaseLost when another server has taken over."""
        listener = asyncio.create_task(self._listen())
        listener.add_done_callback(lambda _: self._wakeup.set())
        dispatcher = asyncio.create_task(self.executor.ops.run(self._wakeup.set))
        try:
            while not (self._stopping and not self._requests and not self.executor.ops):
                await self._wakeup.wait()
                self._wakeup.clear()
                if listener.done():
                    listener.result()  # without reports of its jobs the server must not continue
                    raise LevadaError("the backend closed its reports although it was not stopped")
                if self._requests or self._progress:
                    await self.turn()
        finally:
            listener.cancel()
            dispatcher.cancel()
            self.executor.cancel()
            fail_waiters(self._requests, "the server is stopping")
            await asyncio.gather(listener, dispatcher, return_exceptions=True)

    def stop(self) -> None:
        """Accept no more requests, finish the accepted ones, then end `run`."""
        self._stopping = True
        self._wakeup.set()

    async def _listen(self) -> None:
        async for report in self.backend.reports():
            self.observe(report)

    async def turn(self) -> None:
        """Run one turn of the engine with all queued requests."""
        requests, self._requests = self._requests, []
        try:
            while not await self._turn(requests):
                # The store refused the turn: its callers have an error, its reports are still true.
                requests = [request for request in requests if request.done is None]
        except BaseException:
            # The turn is not stored and will not be: after a restart the engine does not have it.
            fail_waiters(requests, "the server had to stop; check the current state before you repeat the request")
            raise

    async def _turn(self, requests: list[Request]) -> bool:
        """Whether the turn was stored; if not, it is undone and its requests are refused."""
        progress, self._progress = self._progress, {}
        savepoint = self._savepoint(requests)
        now = self.clock.now()
        events = engine_events(requests, now)
        query = self.engine.query
        next_number = query.next_number
        self._number(requests, next_number)
        notes = [note for request in requests for note in request.notes]
        views_before = self._history.begin(events, notes, now)
        progress_events = self._history.progress_events(progress, now)
        self._uncommitted = True
        refused = query.refused
        commands = self.engine.handle(*progress_events, *events)
        if query.refused > refused:
            _log.warning("refused event: %s", query.last_rejection)
        after, before = query.revision, query.revision - len(events)
        self.turns += 1
        questions = [command.detached() for command in commands if isinstance(command, Decide)]
        ops = [op for command in commands if isinstance(command, Apply) for op in self.engine.ops(command.plan)]
        end_commands = [command for command in commands if isinstance(command, JobsEnded)]
        ended = self._history.ended_jobs(end_commands, views_before)
        faults = [command for command in commands if isinstance(command, Faulted)]
        self.faults.note(faults)
        ended_rows = [
            row for command in end_commands for row in zip(command.number.tolist(), command.phase.tolist(), strict=True)
        ]
        if faults:
            # A version that does not fail on these submissions must not replay them as jobs.
            ended_rows += [(record.number, Phase.CANCELLED) for record in faulted_submissions(requests, faults)]
        requests = self._accepted(requests, ended, faulted_requests(requests, faults, len(progress_events)))
        ids = {number: record.id for number, record in self.records.by_number.items()} if faults else {}
        lines = self._history.lines([*notes, *fault_log.notes(faults, ids)], ended, now)
        known_faults = self.faults.with_new(faults, now, ids) if faults else self.faults.reports
        edits = [edit for request in requests for edit in request.edits]
        if events or questions or ops or ended or lines or edits:
            entry = log_entry.encode(
                before,
                after,
                events or (Tick(at=now),),
                query.asked_about if questions else None,
                next_number,
                self._history.commanded_states(),
                tuple(ended_rows),
            )
            changes = Changes(
                at=now,
                entry=entry,
                jobs=[record.row() for request in requests for record in request.records],
                ended=[(record.number, at, msgspec.json.encode(result)) for record, at, result in ended],
                edited=[(record.number, msgspec.json.encode(details)) for record, details in edits],
                history=lines,
                requests=[request.request() for request in requests if request.request is not None],
                audit_rows=[request.audit_entry.row(now) for request in requests if request.audit_entry is not None],
                settings={fault_log.SETTING: msgspec.json.encode(known_faults).decode()} if faults else {},
            )
            if not await self._append(changes, requests, savepoint):
                self._progress = {**progress, **self._progress}
                return False
            self.keys.update((row.user, row.key) for row in changes.requests)
            self._history.mark_stored(ended)
            for record, details in edits:
                record.about = details
            self.broadcast.publish(lines)
        self.faults.reports = known_faults
        self._uncommitted = False
        for request in requests:
            if request.done is not None and not request.done.done():
                request.done.set_result(None)
        self._remember(events, ops, now)
        if any(isinstance(event, QueuesChanged) for event in events):
            self.on_queues_changed()
        self.decisions += len(questions)
        self.executor.execute(commands, questions, ops)
        if self.since_snapshot >= SNAPSHOT_TURNS:
            await self.save_snapshot()
        return True

    # --- parts of a turn --------------------------------------------------------------------------------------------

    def _number(self, requests: Sequence[Request], first: int) -> None:
        """Give new jobs the numbers that the engine will give them."""
        for request in requests:
            for record in request.records:
                record.number, first = first, first + 1
                self.records.add(record)
                self._requested_ids.discard(record.id)

    def _accepted(self, requests: list[Request], ended: Sequence[End], errors: Mapping[int, str]) -> list[Request]:
        """Refuse requests with *errors* (by index) or with jobs that the engine did not accept; return the others."""
        ended_ids = {record.id for record, _, _ in ended}
        query, accepted = self.engine.query, []
        for index, request in enumerate(requests):
            present = [record for record in request.records if query.number_of(record.id) == record.number]
            absent = [record for record in request.records if record not in present and record.id not in ended_ids]
            if not absent and index not in errors:
                accepted.append(request)
                continue
            why = errors.get(index) or query.last_rejection or "another job has its number"
            if absent:
                _log.error("engine rejected jobs %s: %s", ", ".join(record.id for record in absent[:3]), why)
            for record in request.records:
                self.records.drop(record)
            if present:
                # A submission is accepted as a whole or not at all.
                numbers = np.array([record.number for record in present], np.int64)
                self._enqueue(Request(events=(JobsCancelled(at=0.0, number=numbers),)))
            if request.done is not None and not request.done.done():
                request.done.set_exception(InternalError(f"the engine rejected it: {why}"))
        return accepted

    def _savepoint(self, requests: Sequence[Request]) -> Savepoint | None:
        """Return a savepoint for a turn with requests; None for reports only, which are never undone."""
        if all(request.done is None for request in requests):
            return None
        new_records = [record for request in requests for record in request.records]
        return Savepoint(self.engine, self._history, self.records, new_records)

    async def _append(self, changes: Changes, requests: Sequence[Request], savepoint: Savepoint | None) -> bool:
        """Whether the turn is stored; without a savepoint the append is retried until it succeeds."""
        stored = None
        while stored is None:
            try:
                self.lease = await self.store.append(self.lease, changes)
                stored = True
            except StoreError as error:
                if savepoint is not None:
                    stored = await self._resolve(error, changes, requests, savepoint)
                else:
                    await self._wait_for_store(error)
        if self.trouble:
            _log.warning("store is available again")
            self.trouble = ""
        self._unconfirmed_keys.clear()
        self.since_snapshot += stored
        self.on_stored(self.lease)
        return stored

    async def _resolve(
        self, error: StoreError, changes: Changes, requests: Sequence[Request], savepoint: Savepoint
    ) -> bool:
        """Undo a turn whose append failed, wait for the store, and redo the turn if the store has it after all.

        The latter happens where the connection broke during the commit. Returns whether the turn is stored.
        """
        savepoint.undo()
        unconfirmed = isinstance(error, Unconfirmed)
        self._unconfirmed_ids = {record.id for request in requests for record in request.records if unconfirmed}
        if not unconfirmed:
            fail_waiters(requests, f"{error}; {_NOT_DONE}")
        while True:
            try:
                stored = await self.store.is_appended(self.lease, changes)
                break
            except StoreError as still:
                if unconfirmed:
                    self._unconfirmed_keys = {(row.user, row.key) for row in changes.requests}
                    fail_waiters(requests, f"{error}; {_UNRESOLVED}", Unresolved)
                await self._wait_for_store(still)
        self._unconfirmed_ids = set()
        if stored:
            savepoint.redo()
            self.lease = msgspec.structs.replace(self.lease, sequence=self.lease.sequence + 1)
        else:
            fail_waiters(requests, f"{error}; {_NOT_DONE}")
        return stored

    async def _wait_for_store(self, error: StoreError) -> None:
        """Refuse all waiting requests, because the store may be away for long; then pause before the next attempt."""
        if not self.trouble:
            _log.error("store unavailable: %s", error)
        self.trouble = str(error)
        waiting = [request for request in self._requests if request.done is not None]
        self._requested_ids.clear()
        self._requests = [request for request in self._requests if request.done is None]
        fail_waiters(waiting, f"{self.trouble}; {_NOT_DONE}")
        if self._stopping:
            raise error  # callers have an error, and the backend repeats its reports after the next start
        await asyncio.sleep(_RETRY_S)

    async def save_snapshot(self) -> None:
        """Store the whole state, so that the next start replays little; a failure costs only time."""
        if self._uncommitted:
            return
        self.since_snapshot = 0
        try:
            body = await asyncio.to_thread(snapshot.seal, snapshot.pack(self.engine))
            await self.store.save_snapshot(self.lease, self.clock.now(), body)
            self.snapshots += 1
        except LeaseLost:
            raise
        except LevadaError as error:
            _log.warning("cannot save snapshot: %s", error)

    def _remember(self, events: Sequence[Event], ops: Sequence[Op], now: float) -> None:
        """Keep the last decisions and operations for users."""
        for event in events:
            if isinstance(event, Decided | DecideFailed):
                self.decision_history.add(self.engine.query, event, now)
        if ops:
            revision = self.engine.query.revision
            operations = [views.operation(op) for op in ops]
            self.plans.append({"revision": revision, "time": views.timestamp(now), "operations": operations})
        del self.plans[:-_MAX_PLANS]

    # --- views ------------------------------------------------------------------------------------------------------

    def view(self, record: JobRecord, now: float | None = None, positions: Mapping[int, int] | None = None) -> JobView:
        """Return the JSON of a job; *positions*: queue positions by number, computed if not given."""
        if record.result is not None:
            return record.result
        if record.id in self._history.leaving:
            return self._history.leaving[record.id]
        query = self.engine.query
        job = query.job(record.id)
        if job is None:
            return views.plain_job(record)
        at = self.clock.now() if now is None else now
        workers = self.backend.workers(record.id) if job.held else []
        position = query.position(job.number) if positions is None else positions.get(job.number)
        return views.living_job(record, query, job, at, workers, position)

    def phase_and_queue(self, record: JobRecord) -> tuple[str, str]:
        """Return phase and queue of a job as in its view, at a fraction of the cost."""
        job = self.engine.query.job(record.id)
        if job is None or record.result is not None or record.id in self._history.leaving:
            view = self.view(record)
            return view["phase"], view["queue"]
        return Phase.label(job.phase), self.engine.query.queue_of(job)
