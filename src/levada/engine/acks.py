"""What becomes of operations: released, running, failed, timed out. Reports of an old generation change nothing."""

from __future__ import annotations

import numpy as np

from levada.core.events import OperationFailed, OperationTimedOut, Paused, Released, Running
from levada.core.job import Phase
from levada.core.plan import OpKind
from levada.core.reasons import Code
from levada.core.types import Ints
from levada.engine.ends import have_stopped, stopped
from levada.engine.holdings import confirm, release, unclaim
from levada.engine.operations import plan_operations
from levada.engine.state import Intent, State
from levada.engine.withdraw import revert_targets
from levada.kernels import acks
from levada.perf import RestartKind


def released(state: State, event: Released) -> None:
    """Free what an operation gives up; a stop is complete with it."""
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
    """Notes how long jobs took to save and leave."""
    table = state.world.table
    slots, _ = state.current(event.number, event.generation)
    once = (table.unsure[slots] == 0) & (table.failures[slots] == 0)
    stops = slots[(table.issued[slots] > 0) & (table.op[slots] == OpKind.STOP) & once]
    if len(stops):
        state.pauses.append((RestartKind.STOP, table.workload[stops].copy(), state.now - table.issued_at[stops]))


def running(state: State, event: Running) -> None:
    """An operation is complete: all workers run where they should, and what it gave up is free."""
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
    state.alarm(limit)
    for kind, op in ((RestartKind.START, OpKind.START), (RestartKind.RESIZE, OpKind.RESIZE)):
        told = (pauses[0] == op).nonzero()[0]
        if len(told):
            state.pauses.append((kind, pauses[1][told].astype(np.int64), pauses[2][told]))


def paused(state: State, event: Paused) -> None:
    """Notes what a resize in place really cost; only those who went through it know."""
    slots, rows = state.current(event.number, event.generation)
    if len(slots):
        state.pauses.append((RestartKind.RESIZE, state.world.table.workload[slots].copy(), event.seconds[rows]))


def failed(state: State, event: OperationFailed) -> None:
    """An operation was not done: what it would have added is given back, and it is tried again after a pause."""
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
            state.wants_stop(one, int(table.intent[slot]))
            stopped(state, one)
        elif table.unsure[slot] or table.count[slot] == 0:
            # Nobody knows which of its places it has, or it shall stop anyway.
            _done(state, one)
            state.wants_stop(one, int(table.intent[slot]))
            table.retry_at[one] = state.now
            plan_operations(state, one)
        else:
            _undo_resize(state, one)
        set_aside_if_hopeless(state, one)


def timed_out(state: State, event: OperationTimedOut) -> None:
    """No word came. A start is undone by a stop; a resize or stop is asked for again."""
    table = state.world.table
    slots, _ = state.current(event.number, event.generation)
    for slot in slots[table.issued[slots] > 0]:
        one = np.array([slot])
        kind = int(table.op[slot])
        count_failure(state, one)
        _done(state, one)
        table.unsure[one] = 1
        if kind == OpKind.START:
            state.wants_stop(one, int(table.intent[slot]))
            # What may run there must go before anybody else can have the devices: no pause for that.
            table.retry_at[one] = state.now
        plan_operations(state, one)
        set_aside_if_hopeless(state, one)


def overdue(state: State) -> None:
    """Operations whose time is up are taken for lost."""
    table = state.world.table
    slots = state.living()
    late = slots[(table.issued[slots] > 0) & (table.op_deadline[slots] <= state.now)]
    if len(late):
        numbers, generations = table.number[late].copy(), table.generation[late].copy()
        timed_out(state, OperationTimedOut(at=state.now, number=numbers, generation=generations))


def ask_again(state: State) -> None:
    """After a restart: what is out is applied once more, so its time limit begins now.

    A job that is to stop by now has no grant to apply: a stop overtakes its operation.
    """
    table = state.world.table
    slots = state.living()
    slots = slots[table.issued[slots] > 0]
    table.issued_at[slots] = state.now
    table.op_deadline[slots] = state.now + state.options.op_timeout_s
    if len(slots):
        state.alarm(state.now + state.options.op_timeout_s)
    for slot in slots[(table.op[slots] != OpKind.STOP) & (table.count[slots] == 0)]:
        one = np.array([slot])
        _done(state, one)
        table.unsure[one] = 1
        state.wants_stop(one, int(table.intent[slot]))
        table.retry_at[one] = state.now
        plan_operations(state, one)


def _done(state: State, slots: Ints) -> None:
    table = state.world.table
    table.op[slots] = OpKind.NONE
    table.issued[slots] = 0
    table.op_deadline[slots] = np.inf
    state.settle(slots)


def _undo_resize(state: State, one: Ints) -> None:
    """The job goes on with what it had."""
    table = state.world.table
    unclaim(state, int(one[0]))
    _done(state, one)
    table.phase[one] = Phase.RUNNING
    revert_targets(state, one)


def count_failure(state: State, slots: Ints) -> None:
    """One failure more of these jobs' operations; the next try comes after a pause."""
    table = state.world.table
    table.failures[slots] += 1
    for slot in slots:
        state.pause(int(slot), state.backoff(int(table.number[slot]), int(table.failures[slot])))
    state.say(slots, Code.BACKOFF, table.failures[slots])


def set_aside_if_hopeless(state: State, one: Ints) -> None:
    """A job that keeps failing is stopped and left alone until its user says otherwise."""
    table = state.world.table
    slot = int(one[0])
    if table.number[slot] < 0 or table.failures[slot] < state.options.max_failures:
        return
    table.aside[slot] = 1
    if table.held[slot] > 0 and table.op[slot] != OpKind.STOP:
        state.wants_stop(one, Intent.WAIT)
        plan_operations(state, one)
        table.retry_at[slot] = state.now
    if table.phase[slot] == Phase.PENDING:
        state.say(one, Code.SET_ASIDE, table.failures[one])
