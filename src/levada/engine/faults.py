"""Faults: exceptions that no handler expects. The engine undoes what it did and says so with `Faulted`.

`handle_isolated` repeats a call of `Engine.handle` that raised, from a copy of the state before it, one step at a time.
A step is an event, or a part of the engine's own work after the events. A step that raises again is undone alone. An
event about many jobs or nodes is halved until the fault is that of one of them, so that the others get their share of
it: O(log n) copies of the state per fault.

Undoing was chosen over repairing a half-changed state: what a handler leaves behind when it breaks off is not known,
so no repair can promise that the invariants hold. The price is one copy of the state per call, which a live server
pays anyway for each turn with requests. Simulations do not pay it: there, a fault ends the run.
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
from levada.engine.parts import copied
from levada.engine.state import State
from levada.engine.withdraw import revert_targets

#: Fields with one entry per node, pod or update; `number` has one per job, and other columns go along with it.
_LISTS = ("updates", "nodes", "names", "foreign", "ids")
#: Questions to the policy in one call: the policy's own, plain FIFO's after too many rejections, and the wake-up time.
_ASKS = 3


class EngineFault(AssertionError):
    """The engine failed on an event and its state cannot be trusted any more."""


class Steps(Protocol):
    """What an engine does in one call of `handle`."""

    @property
    def _state(self) -> State:
        """The state that the steps change."""

    def advance(self, event: ev.Event) -> None:
        """Counts the event and moves the clock."""

    def apply(self, event: ev.Event) -> None:
        """Changes the state as the event says."""

    def ring(self) -> None:
        """Does what is due by time."""

    def drain(self) -> None:
        """Lets jobs leave nodes that are being drained."""

    def issue(self) -> None:
        """Sends out operations."""

    def ask(self) -> None:
        """Asks the policy, or to be woken."""

    def reject(self, why: str) -> None:
        """Gives up the decision that is being made."""


def halves(event: ev.Event) -> tuple[ev.Event, ev.Event] | None:
    """The event as two about half as many jobs or nodes each; None where it cannot be split."""
    if isinstance(event, ev.Observed):
        return None  # what it does not name counts as gone
    if isinstance(event, ev.JobsSubmitted):
        jobs, middle = event.jobs, len(event.jobs) // 2
        parts = [jobs.rows(range(middle)), jobs.rows(range(middle, len(jobs)))]
        return _both(event, [{"jobs": part} for part in parts]) if middle else None
    fields: dict[str, Any] = {name: getattr(event, name) for name in event.__struct_fields__}
    number = fields.get("number")
    if isinstance(number, np.ndarray):
        fields = {name: c for name, c in fields.items() if isinstance(c, np.ndarray) and len(c) == len(number)}
    else:
        fields = {name: c for name, c in fields.items() if name in _LISTS and isinstance(c, tuple)}
    middle = len(next(iter(fields.values()), ())) // 2
    cuts = (slice(None, middle), slice(middle, None))
    return _both(event, [{name: c[cut] for name, c in fields.items()} for cut in cuts]) if middle else None


def _both(event: ev.Event, fields: list[dict[str, Any]]) -> tuple[ev.Event, ev.Event]:
    return msgspec.structs.replace(event, **fields[0]), msgspec.structs.replace(event, **fields[1])


def handle_isolated(engine: Steps, events: Sequence[ev.Event], before: State, first: Exception) -> None:
    """Handles *events* again from the state *before* them, undoing the steps that fail.

    *first* is what was raised the first time. Where nothing fails this time, all events count and it is told alone.
    """
    engine._state.become(copied(before))
    engine._state.commands = []
    isolation = _Isolation(engine)
    for position, event in enumerate(events):
        engine.advance(event)
        isolation.take(event, position)
    isolation.ring()
    isolation.drain()
    isolation.issue()
    isolation.ask()
    if not isolation.told:
        isolation.tell("Engine", first)


class _Isolation:
    def __init__(self, engine: Steps) -> None:
        self._engine, self._state = engine, engine._state
        self.told = 0

    def tell(
        self, kind: str, broken: Exception, event: ev.Event | None = None, at: int = -1, slots: Ints | None = None
    ) -> None:
        """Says that a step failed."""
        state = self._state
        number = _numbers(event) if slots is None else tuple(state.world.table.number[slots].tolist())
        self.told += 1
        state.commands.append(
            Faulted(
                kind=kind,
                event=event,
                position=at,
                revision=state.revision,
                number=number,
                error=f"{type(broken).__name__}: {broken}",
                traceback="".join(traceback.format_exception(broken)),
            )
        )

    def _try(self, work: Callable[[], None]) -> Exception | None:
        """What *work* raised; then nothing has changed."""
        mark = copied(self._state)
        try:
            work()
        except Exception as broken:
            self._state.become(mark)
            return broken
        return None

    # --- events -----------------------------------------------------------------------------------------------------

    def take(self, event: ev.Event, at: int) -> None:
        """Handles an event, or those parts of it that can be handled."""
        broken = self._try(lambda: self._engine.apply(event))
        if broken is None:
            return
        parts = halves(event)
        if parts is not None:
            for part in parts:
                self.take(part, at)
            return
        self.tell(type(event).__name__, broken, event, at)
        self._go_on_without(event, f"internal error: {type(broken).__name__}: {broken}")

    def _go_on_without(self, event: ev.Event, why: str) -> None:
        """Whatever the loss of an event would hold up goes on."""
        state = self._state
        match event:
            case ev.JobsSubmitted(jobs=jobs):
                # Whoever submitted has numbered the jobs after it already.
                fresh = {name for name in jobs.id if name not in state.world.numbers}
                state.world.next_number += len(fresh)
            case ev.Decided() | ev.DecideFailed():
                if event.revision == state.deciding:
                    self._reject(why)
            case ev.Restarted():
                state.deciding, state.dirty, state.told_wake = None, True, np.inf
            case ev.NodesLost():
                # Nothing new goes there; its jobs stay as they are until somebody tells of them.
                self._try(lambda: self._engine.apply(ev.NodesCordoned(at=event.at, names=event.names)))
            case _:
                pass

    def _reject(self, why: str) -> None:
        if self._try(lambda: self._engine.reject(why)) is not None:
            state = self._state
            state.deciding, state.next_try = None, state.now + state.options.backoff_max_s

    # --- the engine's own work --------------------------------------------------------------------------------------

    def ring(self) -> None:
        """Does what is due; an operation whose timeout cannot be handled gets another one."""
        if self._try(self._engine.ring) is None:
            return
        state, table = self._state, self._state.world.table
        late = table.order[(table.issued[table.order] > 0) & (table.op_deadline[table.order] <= state.now)]
        for number, generation in zip(table.number[late].tolist(), table.generation[late].tolist(), strict=True):
            event = ev.OperationTimedOut(at=state.now, number=np.array([number]), generation=np.array([generation]))
            broken = self._try(lambda event=event: self._engine.apply(event))  # type: ignore[misc]
            if broken is not None:
                self.tell("OperationTimedOut", broken, event)
                table = self._state.world.table
                table.op_deadline[table.find(event.number)] = state.now + state.options.op_timeout_s
        if (broken := self._try(self._engine.ring)) is not None:
            self.tell("Alarms", broken)
            state.next_alarm = state.now + state.options.backoff_max_s
            late_rooms = [name for name, kept in state.reservations.items() if kept.expires <= state.now]
            for name in late_rooms:
                del state.reservations[name]

    def drain(self) -> None:
        """Lets jobs leave; where that fails they stay until the next event."""
        if (broken := self._try(self._engine.drain)) is not None:
            self.tell("Drains", broken)

    def issue(self) -> None:
        """Sends out operations; those of jobs that make it fail count as failed."""
        broken = self._try(self._engine.issue)
        if broken is None:
            return
        state, table = self._state, self._state.world.table
        ready = state.where((table.op != OpKind.NONE) & (table.issued == 0) & (table.retry_at <= state.now))
        guilty = self._guilty(ready, ready)
        self.tell("Operations", broken, slots=guilty)
        if self._try(lambda: _give_up(state, guilty)) is None and self._try(self._engine.issue) is None:
            return
        state.may_issue = False
        for slot in ready.tolist():
            state.pause(slot, state.options.backoff_max_s)

    def _guilty(self, slots: Ints, ready: Ints) -> Ints:
        """Those of *slots* without which operations can go out, of all that are *ready*."""
        if not len(slots) or self._issues(slots, ready):
            return slots[:0]
        if len(slots) == 1:
            return slots
        middle = len(slots) // 2
        found = np.concatenate([self._guilty(half, ready) for half in (slots[:middle], slots[middle:])])
        return found if len(found) else slots

    def _issues(self, slots: Ints, ready: Ints) -> bool:
        """Whether the operations of these jobs can go out alone."""
        twin = copied(self._state)
        others = ready[np.isin(ready, slots, invert=True)]
        twin.world.table.retry_at[others] = np.inf
        try:
            issue(twin)
        except Exception:
            return False
        return True

    def ask(self) -> None:
        """Asks the policy; where that fails it is tried again after a pause, and what jobs have stays theirs."""
        state = self._state
        for _ in range(_ASKS):
            if (broken := self._try(self._engine.ask)) is None:
                return
            if (unlearnt := self._try(state.learn)) is not None:
                self.tell("Learning", unlearnt)
                state.lessons, state.pauses, state.over = [], [], []
                continue
            self.tell("Decision", broken)
            self._reject(f"internal error: {type(broken).__name__}: {broken}")
        state.next_try = state.now + state.options.backoff_max_s
        self._try(self._engine.ask)


def _give_up(state: State, slots: Ints) -> None:
    """The operations of these jobs count as failed before they went out."""
    table = state.world.table
    for slot in slots.tolist():
        one, kind = np.array([slot]), int(table.op[slot])
        acks.count_failure(state, one)
        if kind == OpKind.START:
            state.wants_stop(one, int(table.intent[slot]))
            plan_operations(state, one)
        elif kind == OpKind.RESIZE:
            revert_targets(state, one)
        acks.set_aside_if_hopeless(state, one)


def _numbers(event: ev.Event | None) -> tuple[int, ...]:
    """Numbers of the jobs that an event names."""
    if isinstance(event, ev.JobsUpdated):
        return tuple(update.number for update in event.updates)
    number = getattr(event, "number", None)
    return tuple(number.tolist()) if isinstance(number, np.ndarray) else ()
