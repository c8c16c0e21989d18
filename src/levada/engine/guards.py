"""Which admitted jobs a policy does not get to see now: they keep what they have, and it is not there to give.

Half a decision is never vetoed: a job is either in the policy's view with all it has, or out of it with all it has.

Guards save jobs from changes that policies make for the sake of others. A job whose size is outside its range was given
another one by its user, and no guard holds that up.
"""

from __future__ import annotations

import math

import numpy as np

from levada.core.job import Phase
from levada.core.types import Bools, Floats, Ints
from levada.engine import steps
from levada.engine.admit import admitted
from levada.engine.state import State
from levada.engine.withdraw import revert_targets


def visible(state: State) -> tuple[Ints, Ints | None]:
    """The jobs that a policy gets to see now, and what they may have together, if that is known already.

    Brings the times of all jobs up to now.
    """
    seen = steps.survey(state)
    if seen is not None:
        view, capacity, near_end = seen
        soon = _ends_soon(state, view, state.world.table.held[view] > 0) if near_end else None
        if soon is not None and soon.any():
            return view[~soon], None
        return view, None if state.world.target.rows.shape[1] else capacity
    slots, table = state.living(), state.world.table
    state.account(slots)
    may = admitted(state, slots)
    barred = slots[~may & (table.count[slots] > 0) & (table.phase[slots] == Phase.PENDING)]
    if len(barred):
        revert_targets(state, barred)
    state.left_out = bool((table.issued[slots] > 0).any())
    return slots[may & ~guarded(state, slots)], None


def waiting(state: State) -> tuple[Ints, Ints | None]:
    """As `visible`, of the jobs that wait and shall have nothing so far; the times of no others are brought up to now.

    For them there is what is free: all others are out of view with what they have.
    """
    seen = steps.waiting(state)
    if seen is not None:
        view, capacity = seen
        return view, None if state.world.target.rows.shape[1] else capacity
    living, table = state.living(), state.world.table
    state.left_out = bool((table.issued[living] > 0).any())
    slots = living[(table.phase[living] == Phase.PENDING) & (table.count[living] == 0)]
    state.account(slots)
    return slots[admitted(state, slots)], None


def guarded(state: State, slots: Ints) -> Bools:
    """Which of these jobs stay as they are; notes when the first guard falls."""
    table, wanted = state.world.table, state.policy.guards
    out = (table.issued[slots] > 0) | state.protected()[slots]
    # Failed a moment ago, or leaving: its own pause or stop comes first.
    out |= (table.retry_at[slots] > state.now) & (table.held[slots] > 0)
    runs = (table.held[slots] > 0) & ~out
    falls = guard_falls(state, slots)
    young = runs & (falls > state.now) & in_range(state, slots)
    state.guard_wake = float(falls[young].min()) if young.any() else math.inf
    out |= young
    if wanted.payback:
        out |= runs & ~out & _ends_soon(state, slots, runs & ~out)
    return out


def guard_falls(state: State, slots: Ints) -> Floats:
    """When these jobs are left alone no more for being young, if they run."""
    table, options, wanted = state.world.table, state.options, state.policy.guards
    falls = np.full(len(slots), -math.inf)
    if wanted.min_run:
        falls = np.maximum(falls, table.started[slots] + options.min_run_s)
    if wanted.cooldown:
        falls = np.maximum(falls, table.resized[slots] + options.cooldown_s)
    return falls


def in_range(state: State, slots: Ints) -> Bools:
    """Which of these jobs have a size that they may have."""
    table = state.world.table
    return np.asarray((table.min[slots] <= table.held[slots]) & (table.held[slots] <= table.max[slots]))


def _ends_soon(state: State, slots: Ints, asked: Bools) -> Bools:
    """Which jobs would end before a restart pays."""
    table = state.world.table
    soon = np.zeros(len(slots), bool)
    known = asked & ~np.isnan(table.steps[slots]) & (table.resizes_in_place[slots] == 0) & in_range(state, slots)
    rows = known.nonzero()[0]
    if not len(rows):
        return soon
    chosen = slots[rows]
    numbers, held = table.number[chosen], table.held[chosen]
    rates = state.perf.rates(numbers, table.held_type[chosen], held)
    left = table.steps[chosen] - table.steps_done[chosen]
    cost = state.perf.restart_costs_s(numbers, held, held + 1)
    soon[rows] = (rates > 0) & (left <= rates * cost * state.options.payback)
    return soon
