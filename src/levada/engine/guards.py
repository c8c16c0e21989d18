"""Which admitted jobs a policy does not get to see now: they keep what they have, and it is not there to give.

Half a decision is never vetoed: a job is either in the policy's view with all it has, or out of it with all it has.

Guards save jobs from changes that policies make for the sake of others. A job whose size is outside its range was given
another one by its user, and no guard holds that up. Nor is a job that has just started kept from another size where
that is known to cost it next to nothing: it is in view, firm where it is; see `policies.firm`.
"""

from __future__ import annotations

import math

import numpy as np

from levada.core.inventory import UNLIMITED
from levada.core.job import Phase, Preemptible
from levada.core.layout import NOT_ALLOWED
from levada.core.types import Bools, Floats, Ints
from levada.engine.admit import judge_feasibility
from levada.engine.state import State
from levada.engine.withdraw import revert_targets
from levada.kernels import survey
from levada.policies.protocol import gives_more
from levada.tables.accounts import UserAccounts
from levada.tables.snapshot import NO_ROWS

#: A resize that costs less than this is worth nobody's waiting, in seconds without progress.
CHEAP_S = 1.0


def visible(state: State) -> tuple[Ints, Ints]:
    """The jobs that a policy gets to see now, and the rows of those that are firm.

    Brings the times of all jobs up to now.
    """
    if state.world.table.below_fixed.any():
        _grow_back(state)
    view = _in_view(state)
    firm = _firm(state) if state.guard_wake < math.inf else NO_ROWS
    if not len(firm):
        return view, NO_ROWS
    shown = state.flags(np.concatenate([view, firm]))
    view = state.living()[shown[state.living()]]
    return view, state.flags(firm)[view].nonzero()[0]


def _grow_back(state: State) -> None:
    """Jobs below the size that their user fixed want that size where there is room for it, within all limits.

    Otherwise they want no less than they have: policies that give every job its minimum would shrink them.
    """
    table = state.world.table
    slots = state.where(table.below_fixed > 0)
    units = table.units()
    for slot in slots.tolist():
        free = _free_for(state, slot)
        count, size = int(table.count[slot]), int(table.fixed[slot])
        allowed = table.preference[:, slot] != NOT_ALLOWED
        room = int(free[table.type[slot]]) if count else int(free[: len(allowed)][allowed].max(initial=0))
        fits = room >= (size - count) * int(units[slot])
        table.min[slot] = size if fits else count or table.own_min[slot]
        table.desired[slot] = table.min[slot]  # some policies give this size or nothing


def _free_for(state: State, slot: int) -> Ints:
    """Per type what is free, and what the limits of a job's queues and user leave beside what all have."""
    world, table, queues = state.world, state.world.table, state.world.queues
    free = world.capacity_for(np.zeros(0, np.int64))
    if queues.trivial:
        return free
    types, slots = world.inventory.types, state.where(table.count > 0)
    units = (table.units() * table.count)[slots]
    used = queues.usage(table.queue[slots], table.type[slots], units, len(types))
    limits, sure = queues.limits(types), queues.guarantees(types)
    for queue in queues.lineage(int(table.queue[slot])):
        most = limits[queue] if queues.values[queue].borrow else np.minimum(limits[queue], sure[queue])
        free = np.minimum(free, most - used[queue])
    accounts = UserAccounts(table, queues, types)
    left = accounts.left(accounts.usage(slots, table.type[slots], units))
    return np.minimum(free, left[accounts.line[slot]].min(axis=0, initial=UNLIMITED))


def _in_view(state: State) -> Ints:
    """Like `visible`, without who is firm."""
    table, options, wanted = state.world.table, state.options, state.policy.guards
    while True:
        view, barred, untold, state.guard_wake, state.left_out, near_end = survey.survey(
            table.ints,
            table.floats,
            table.order,
            state.now,
            options.min_run_s if wanted.min_run else -math.inf,
            options.cooldown_s if wanted.cooldown else -math.inf,
            wanted.payback,
        )
        if not len(untold):
            break
        judge_feasibility(state, untold)
    if len(barred):
        revert_targets(state, barred)
    if near_end:
        view = view[~_ends_soon(state, view, table.held[view] > 0)]
    return view


def waiting(state: State) -> Ints:
    """Like `visible`, restricted to pending jobs without a target; the times of no others are brought up to now.

    For them there is what is free: all others are out of view with what they have.
    """
    table = state.world.table
    while True:
        view, untold, state.left_out = survey.waiting(table.ints, table.floats, table.order, state.now)
        if not len(untold):
            return view
        judge_feasibility(state, untold)


def guard_falls(state: State, slots: Ints) -> Floats:
    """When these jobs are left alone no more for being young, if they run."""
    table, options, wanted = state.world.table, state.options, state.policy.guards
    started, resized = table.started[slots], table.resized[slots]
    falls = np.full(len(slots), -math.inf)
    # Whoever was said to be preemptible at once is not spared for having started, only for having been resized.
    at_once = table.preemptible[slots] == Preemptible.AT_ONCE
    if wanted.min_run:
        falls = np.where(at_once, falls, started + options.min_run_s)
    if wanted.cooldown:
        cools = ~at_once | (resized > started)
        falls = np.where(cools, np.maximum(falls, resized + options.cooldown_s), falls)
    return falls


def resizable_at(state: State, slots: Ints) -> Floats:
    """From when on these jobs may have another size though they have just started, for that costs them next to nothing.

    It is inf where it does cost something, or nobody knows; 0 stands for a cost that nobody told. What was resized a
    moment ago is left alone for a while all the same.
    """
    table, options = state.world.table, state.options
    at = np.full(len(slots), math.inf)
    in_place = (table.resizes_in_place[slots] > 0) & (table.held[slots] > 0) & (table.held[slots] == table.count[slots])
    if not gives_more(state.policy.policy) or state.policy.by_node or not in_place.any():
        return at
    held, resized = table.held[slots], table.resized[slots]
    cost = state.perf.restart_costs_s(table.number[slots], held, held + 1)
    cools = (resized > table.started[slots]) & state.policy.guards.cooldown
    rows = in_place & (cost > 0) & (cost < CHEAP_S)
    at[rows] = np.where(cools, resized + options.cooldown_s, -math.inf)[rows]
    return at


def _firm(state: State) -> Ints:
    """Slots of jobs that a guard hides for their youth alone, and that may be resized; notes when more may be."""
    if not state.asked_policy:
        return NO_ROWS
    slots, table = state.living(), state.world.table
    young = (table.phase[slots] == Phase.RUNNING) & (table.issued[slots] == 0) & (table.retry_at[slots] <= state.now)
    young &= (guard_falls(state, slots) > state.now) & in_range(state, slots) & ~state.protected()[slots]
    slots = slots[young]
    at = resizable_at(state, slots)
    later = at > state.now
    state.guard_wake = min(state.guard_wake, float(at[later].min(initial=math.inf)))
    return slots[~later]


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
