"""Faults: unexpected exceptions in the engine.

They are rolled back and reported as `Faulted`.

`handle_isolated` repeats a call of `Engine.handle` that raised, from a copy of the state before it, one step at a time.
A step is an event, or a part of the engine's own work after the events. Only steps that raise again are rolled back. An
event about many jobs or nodes is halved until the fault is isolated to one of them, so that it still applies to the
others: O(log n) copies of the state per fault.

Rollback was chosen over repair: an interrupted handler leaves an unknown state, for which no repair can guarantee the
invariants. The cost is one copy of the state per call, which a live server needs anyway for each turn with requests.
Simulations do without: there, a fault ends the run.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from levada.core import events as ev
from levada.core.commands import Faulted
from levada.core.plan import OpKind
from levada.core.types import Ints
from levada.engine import acks
from levada.engine.operations import issue, plan_operations
from levada.engine.revert import revert_targets
from levada.engine.state import State
from levada.engine.state_fields import copied

#: Fields with one entry per node, pod or update. Events about jobs have `number` and columns of the same length.
_LISTS = ("updates", "nodes", "names", "foreign", "ids")
#: Attempts per call to request a decision: by the policy, by the FIFO fill, and after failed learning.
_ATTEMPTS = 3


class EngineFault(AssertionError):
    """The engine failed on an event; its state is no longer valid."""


class Steps(Protocol):
    """The steps of `Engine.handle`."""

    @property
    def _state(self) -> State:
        """The state that the steps change."""

    def advance(self, event: ev.Event) -> None:
        """Count the event and advance the clock."""

    def apply(self, event: ev.Event) -> None:
        """Apply the event to the state."""

    def ring(self) -> None:
        """Handle timers that are due."""

    def drain(self) -> None:
        """Stop jobs on draining nodes."""

    def issue(self) -> None:
        """Issue operations."""

    def ask(self) -> None:
        """Emit `Decide` or `Wake`."""

    def reject(self, why: str) -> None:
        """Reject the pending decision."""


def halves(event: ev.Event) -> tuple[ev.Event, ev.Event] | None:
    """Split an event into two about half of its jobs or nodes each; None if that is impossible."""
    if isinstance(event, ev.Observed):
        return None  # jobs that it does not name count as gone
    if isinstance(event, ev.JobsSubmitted):
        jobs, middle = event.jobs, len(event.jobs) // 2
        parts = [jobs.rows(range(middle)), jobs.rows(range(middle, len(jobs)))]
        return _both(event, [{"jobs": part} for part in parts]) if middle else None
    fields: dict[str, Any] = {name: getattr(event, name) for name in event.__struct_fields__}
    number = fields.get("number")
    if isinstance(number, np.ndarray):
        fields = {name: v for name, v in fields.items() if isinstance(v, np.ndarray) and len(v) == len(number)}
    else:
        fields = {name: v for name, v in fields.items() if name in _LISTS and isinstance(v, tuple)}
    middle = len(next(iter(fields.values()), ())) // 2
    cuts = (slice(None, middle), slice(middle, None))
    return _both(event, [{name: v[cut] for name, v in fields.items()} for cut in cuts]) if middle else None


def _both(event: ev.Event, fields: list[dict[str, Any]]) -> tuple[ev.Event, ev.Event]:
    return msgspec.structs.replace(event, **fields[0]), msgspec.structs.replace(event, **fields[1])


def handle_isolated(engine: Steps, events: Sequence[ev.Event], before: State, first: Exception) -> None:
    """Handle *events* again from the state *before* them and roll back the steps that fail.

    *first* is the original exception. It is reported by itself if no step fails this time.
    """
    engine._state.become(copied(before))
    engine._state.commands = []
    isolation = _Isolation(engine)
    for position, event in enumerate(events):
        engine.advance(event)
        isolation.apply(event, position)
    isolation.ring()
    isolation.drain()
    isolation.issue()
    isolation.ask()
    if not isolation.reported:
        isolation.report("Engine", first)


class _Isolation:
    """Runs the steps of an engine one at a time and rolls back those that fail."""

    def __init__(self, engine: Steps) -> None:
        self._engine, self._state = engine, engine._state
        self.reported = 0

    def report(
        self, kind: str, error: Exception, event: ev.Event | None = None, at: int = -1, slots: Ints | None = None
    ) -> None:
        """Emit `Faulted` for a failed step."""
        state = self._state
        number = _numbers(event) if slots is None else tuple(state.world.table.number[slots].tolist())
        self.reported += 1
        state.commands.append(
            Faulted(
                kind=kind,
                event=event,
                position=at,
                revision=state.revision,
                number=number,
                error=f"{type(error).__name__}: {error}",
                traceback="".join(traceback.format_exception(error)),
            )
        )

    def _try(self, work: Callable[[], None]) -> Exception | None:
        """Run *work*; if it raises, roll back and return the exception."""
        mark = copied(self._state)
        try:
            work()
        except Exception as error:
            self._state.become(mark)
            return error
        return None

    # --- events -----------------------------------------------------------------------------------------------------

    def apply(self, event: ev.Event, at: int) -> None:
        """Apply an event, or those parts of it that do not fail."""
        error = self._try(lambda: self._engine.apply(event))
        if error is None:
            return
        parts = halves(event)
        if parts is not None:
            for part in parts:
                self.apply(part, at)
            return
        self.report(type(event).__name__, error, event, at)
        self._continue_without(event, f"internal error: {type(error).__name__}: {error}")

    def _continue_without(self, event: ev.Event, why: str) -> None:
        """Keep the engine working after the loss of an event."""
        state = self._state
        match event:
            case ev.JobsSubmitted(jobs=jobs):
                # The server has already assigned the following numbers.
                lost = {name for name in jobs.id if name not in state.world.numbers}
                state.world.next_number += len(lost)
            case ev.Decided() | ev.DecideFailed():
                if event.revision == state.deciding:
                    self._reject(why)
            case ev.Restarted():
                state.deciding, state.dirty, state.told_wake = None, True, np.inf
            case ev.NodesLost():
                # No new placements; its jobs stay as they are until they are reported.
                self._try(lambda: self._engine.apply(ev.NodesCordoned(at=event.at, names=event.names)))
            case _:
                pass

    def _reject(self, why: str) -> None:
        if self._try(lambda: self._engine.reject(why)) is not None:
            state = self._state
            state.deciding, state.next_try = None, state.now + state.options.backoff_max_s

    # --- the engine's own work --------------------------------------------------------------------------------------

    def ring(self) -> None:
        """Handle timers; an operation whose timeout fails gets a new deadline."""
        if self._try(self._engine.ring) is None:
            return
        state, table = self._state, self._state.world.table
        late = table.order[(table.issued[table.order] > 0) & (table.op_deadline[table.order] <= state.now)]
        late = late if state.away_since is None else late[:0]
        for number, generation in zip(table.number[late].tolist(), table.generation[late].tolist(), strict=True):
            event = ev.OperationTimedOut(at=state.now, number=np.array([number]), generation=np.array([generation]))
            error = self._try(lambda event=event: self._engine.apply(event))  # type: ignore[misc]
            if error is not None:
                self.report("OperationTimedOut", error, event)
                table = self._state.world.table
                table.op_deadline[table.find(event.number)] = state.now + state.options.op_timeout_s
        if (error := self._try(self._engine.ring)) is not None:
            self.report("Alarms", error)
            state.next_alarm = state.now + state.options.backoff_max_s
            expired = [name for name, room in state.reservations.items() if room.expires <= state.now]
            for name in expired:
                del state.reservations[name]

    def drain(self) -> None:
        """Drain nodes; if that fails, jobs stay until the next event."""
        if (error := self._try(self._engine.drain)) is not None:
            self.report("Drains", error)

    def issue(self) -> None:
        """Issue operations; those that raise count as failed."""
        error = self._try(self._engine.issue)
        if error is None:
            return
        state, table = self._state, self._state.world.table
        ready = state.where((table.op != OpKind.NONE) & (table.issued == 0) & (table.retry_at <= state.now))
        culprits = self._culprits(ready, ready)
        self.report("Operations", error, slots=culprits)
        if self._try(lambda: _fail_operations(state, culprits)) is None and self._try(self._engine.issue) is None:
            return
        state.may_issue = False
        for slot in ready.tolist():
            state.pause(slot, state.options.backoff_max_s)

    def _culprits(self, slots: Ints, ready: Ints) -> Ints:
        """Those of *slots* whose operations raise; *ready* are all jobs with operations."""
        if not len(slots) or self._can_issue(slots, ready):
            return slots[:0]
        if len(slots) == 1:
            return slots
        middle = len(slots) // 2
        culprits = np.concatenate([self._culprits(half, ready) for half in (slots[:middle], slots[middle:])])
        return culprits if len(culprits) else slots

    def _can_issue(self, slots: Ints, ready: Ints) -> bool:
        """Whether the operations of these jobs alone can be issued."""
        twin = copied(self._state)
        others = ready[np.isin(ready, slots, invert=True)]
        twin.world.table.retry_at[others] = np.inf
        try:
            issue(twin)
        except Exception:
            return False
        return True

    def ask(self) -> None:
        """Request a decision; if that fails, grants stay as they are and the next attempt comes after a backoff."""
        state = self._state
        for _ in range(_ATTEMPTS):
            if (error := self._try(self._engine.ask)) is None:
                return
            if (learning_error := self._try(state.learn)) is not None:
                self.report("Learning", learning_error)
                state.lessons, state.pauses, state.over = [], [], []
                continue
            self.report("Decision", error)
            self._reject(f"internal error: {type(error).__name__}: {error}")
        state.next_try = state.now + state.options.backoff_max_s
        self._try(self._engine.ask)


def _fail_operations(state: State, slots: Ints) -> None:
    """Count the operations of these jobs as failed before they were issued."""
    table = state.world.table
    for slot in slots.tolist():
        one, kind = np.array([slot]), int(table.op[slot])
        acks.count_failure(state, one)
        if kind == OpKind.START:
            state.clear_targets(one, int(table.intent[slot]))
            plan_operations(state, one)
        elif kind == OpKind.RESIZE:
            revert_targets(state, one)
        acks.set_aside_if_failing(state, one)


def _numbers(event: ev.Event | None) -> tuple[int, ...]:
    """Numbers of the jobs that an event names."""
    if isinstance(event, ev.JobsUpdated):
        return tuple(update.number for update in event.updates)
    number = getattr(event, "number", None)
    return tuple(number.tolist()) if isinstance(number, np.ndarray) else ()
