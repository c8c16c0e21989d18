"""Results of operations: released, running, failed, timed out.

Reports of an old generation change nothing.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.events import OperationFailed, OperationTimedOut, Paused, Released, Running
from levada.core.job import Phase
from levada.core.plan import OpKind
from levada.core.reasons import Code
from levada.core.types import Ints
from levada.engine.completion import have_stopped, stopped
from levada.engine.held_devices import confirm, release, unclaim
from levada.engine.operations import plan_operations
from levada.engine.revert import revert_targets
from levada.engine.state import Intent, State
from levada.kernels import acks
from levada.perf import RestartKind


def released(state: State, event: Released) -> None:
    """Free the devices that an operation drops; this completes a stop."""
    if state.perf.learns:
        _time_stops(state, event)
    table, target, held = state.world.table, state.world.target, state.world.held
    news, stops, special_stops, special_shrinks, freed = acks.released(
        _report(event), table.ints, table.floats, *table.index, state.now, target.owner, held.owner, held.claimed
    )
    if len(special_shrinks):
        release(state, special_shrinks, everything=False)
    if len(stops):
        table.ran[stops] = 0
        have_stopped(state, stops, special_stops)
    state.acked |= news > 0
    state.may_issue |= freed and state.unsent


def _report(event: Running | Released) -> Ints:
    report = np.empty((2, len(event.number)), np.int64)
    report[0], report[1] = event.number, event.generation
    return report


def _time_stops(state: State, event: Released) -> None:
    """Record how long jobs took to checkpoint and stop."""
    table = state.world.table
    slots, _ = state.current(event.number, event.generation)
    once = (table.unsure[slots] == 0) & (table.failures[slots] == 0)
    stops = slots[(table.issued[slots] > 0) & (table.op[slots] == OpKind.STOP) & once]
    if len(stops):
        state.pauses.append((RestartKind.STOP, table.workload[stops].copy(), state.now - table.issued_at[stops]))


def running(state: State, event: Running) -> None:
    """Complete an operation: all workers run on their target devices, and dropped devices are free."""
    table, target, held = state.world.table, state.world.target, state.world.held
    news, special, follows, limit, pauses = acks.running(
        _report(event),
        table.ints,
        table.floats,
        *table.index,
        state.now,
        state.revision,
        target.owner,
        held.owner,
        held.claimed,
    )
    if not news:
        return
    if len(special):
        release(state, special[table.count[special] > 0], everything=False)
        confirm(state, special)
        plan_operations(state, special)
    state.acked = True
    state.may_issue |= follows or state.unsent
    state.may_cycle |= follows
    state.set_timer(limit)
    if not state.perf.learns:
        return
    for kind, op in ((RestartKind.START, OpKind.START), (RestartKind.RESIZE, OpKind.RESIZE)):
        rows = (pauses[0] == op).nonzero()[0]
        if len(rows):
            state.pauses.append((kind, pauses[1][rows].astype(np.int64), pauses[2][rows]))


def paused(state: State, event: Paused) -> None:
    """Record the duration of a resize in place, as measured by the workers."""
    slots, rows = state.current(event.number, event.generation)
    if len(slots):
        state.pauses.append((RestartKind.RESIZE, state.world.table.workload[slots].copy(), event.seconds[rows]))


def failed(state: State, event: OperationFailed) -> None:
    """Roll back a failed operation; the next attempt comes after a backoff."""
    table = state.world.table
    slots, _ = state.current(event.number, event.generation)
    for slot in slots[table.issued[slots] > 0]:
        one = np.array([slot])
        kind = int(table.op[slot])
        count_failure(state, one)
        if kind == OpKind.STOP:
            _done(state, one)
            plan_operations(state, one)
        elif kind == OpKind.START:
            state.clear_targets(one, int(table.intent[slot]))
            stopped(state, one)
        elif table.unsure[slot] or table.count[slot] == 0:
            # It is unknown which devices the job has, or the job must stop anyway.
            _done(state, one)
            state.clear_targets(one, int(table.intent[slot]))
            table.retry_at[one] = state.now
            plan_operations(state, one)
        else:
            _undo_resize(state, one)
        set_aside_if_failing(state, one)


def timed_out(state: State, event: OperationTimedOut) -> None:
    """Handle missing acknowledgements: a start is followed by a stop, a resize or stop is issued again."""
    table = state.world.table
    slots, _ = state.current(event.number, event.generation)
    for slot in slots[table.issued[slots] > 0]:
        one = np.array([slot])
        kind = int(table.op[slot])
        count_failure(state, one)
        _done(state, one)
        table.unsure[one] = 1
        if kind == OpKind.START:
            state.clear_targets(one, int(table.intent[slot]))
            # Workers may run on the devices and block other jobs: stop them without a backoff.
            table.retry_at[one] = state.now
        plan_operations(state, one)
        set_aside_if_failing(state, one)


def overdue(state: State) -> None:
    """Time out operations whose deadline has passed."""
    table = state.world.table
    slots = state.living()
    late = slots[(table.issued[slots] > 0) & (table.op_deadline[slots] <= state.now)]
    if len(late):
        numbers, generations = table.number[late].copy(), table.generation[late].copy()
        timed_out(state, OperationTimedOut(at=state.now, number=numbers, generation=generations))


def restart_timeouts(state: State) -> None:
    """Restart the timeouts of issued operations after a restart of the server, which applies them again.

    A job that must stop meanwhile has no grant to apply: a stop replaces its operation.
    """
    table = state.world.table
    slots = state.living()
    slots = slots[table.issued[slots] > 0]
    table.issued_at[slots] = state.now
    table.op_deadline[slots] = state.now + state.options.op_timeout_s
    if len(slots):
        state.set_timer(state.now + state.options.op_timeout_s)
    for slot in slots[(table.op[slots] != OpKind.STOP) & (table.count[slots] == 0)]:
        one = np.array([slot])
        _done(state, one)
        table.unsure[one] = 1
        state.clear_targets(one, int(table.intent[slot]))
        table.retry_at[one] = state.now
        plan_operations(state, one)


def backend_away(state: State) -> None:
    """Issue nothing, let no operation time out and ask for no decision until the backend is back."""
    if state.away_since is None:
        state.away_since = state.now
        state.next_alarm = state.now


def backend_back(state: State) -> None:
    """Move the deadlines of operations and reservations by the length of the outage."""
    if state.away_since is None:
        return
    table, outage_s = state.world.table, max(state.now - state.away_since, 0.0)
    slots = state.where(table.issued > 0)
    table.op_deadline[slots] += outage_s
    table.issued_at[slots] += outage_s
    for room in list(state.reservations.values()):
        state.reservations[room.id] = msgspec.structs.replace(room, expires=room.expires + outage_s)
    state.away_since = None
    state.next_alarm = state.now
    state.dirty = state.may_issue = True


def _done(state: State, slots: Ints) -> None:
    table = state.world.table
    table.op[slots] = OpKind.NONE
    table.issued[slots] = 0
    table.op_deadline[slots] = np.inf
    state.settle(slots)


def _undo_resize(state: State, one: Ints) -> None:
    """Let the job continue with the devices that it had."""
    table = state.world.table
    unclaim(state, int(one[0]))
    _done(state, one)
    table.phase[one] = Phase.RUNNING
    revert_targets(state, one)


def count_failure(state: State, slots: Ints) -> None:
    """Count a failed operation of each of these jobs; the next attempt comes after a backoff."""
    table = state.world.table
    table.failures[slots] += 1
    for slot in slots:
        state.pause(int(slot), state.backoff(int(table.number[slot]), int(table.failures[slot])))
    state.set_reason(slots, Code.BACKOFF, table.failures[slots])


def set_aside_if_failing(state: State, one: Ints) -> None:
    """Stop a job after `max_failures` failed operations and ignore it until its user resumes or updates it."""
    table = state.world.table
    slot = int(one[0])
    if table.number[slot] < 0 or table.failures[slot] < state.options.max_failures:
        return
    table.aside[slot] = 1
    if table.held[slot] > 0 and table.op[slot] != OpKind.STOP:
        state.clear_targets(one, Intent.WAIT)
        plan_operations(state, one)
        table.retry_at[slot] = state.now
    if table.phase[slot] == Phase.PENDING:
        state.set_reason(one, Code.SET_ASIDE, table.failures[one])
