"""Guards: which jobs are in the policy's view now.

All other jobs keep their devices.

A job is either in view with all of its devices or out of view with all of them; half a decision is never vetoed.

Guards protect jobs from changes in favour of other jobs. They do not delay a resize by the user, that is, of a job
whose size is outside its range. A job that has just started may be resized if that is known to cost almost nothing: it
is in view as *firm*, bound to its devices; see `policies.pinned`.
"""

from __future__ import annotations

import math

import numpy as np

from levada.core.inventory import UNLIMITED
from levada.core.job import Phase, Preemptible
from levada.core.layout import NOT_ALLOWED
from levada.core.types import Bools, Floats, Ints
from levada.engine.admission import update_feasibility
from levada.engine.revert import revert_targets
from levada.engine.state import State
from levada.kernels import survey
from levada.policies.protocol import gives_more
from levada.tables.snapshot import NO_ROWS
from levada.tables.user_quota import UserQuotas

#: A resize that costs less than this, in seconds without progress, needs no guard.
CHEAP_S = 1.0


def visible(state: State) -> tuple[Ints, Ints]:
    """Slots of the jobs in the policy's view, and the rows of those that are firm.

    Updates the time accounts of all jobs.
    """
    if np.count_nonzero(state.world.table.below_fixed):
        _grow_back(state)
    view = _in_view(state)
    firm = _firm(state) if state.guard_wake < math.inf else NO_ROWS
    if not len(firm):
        return view, NO_ROWS
    shown = state.flags(np.concatenate([view, firm]))
    view = state.living()[shown[state.living()]]
    return view, state.flags(firm)[view].nonzero()[0]


def _grow_back(state: State) -> None:
    """Raise the minimum of jobs below their fixed size to that size if there is capacity within all limits.

    Otherwise their minimum is their current size: policies that give every job its minimum would shrink them.
    """
    table = state.world.table
    slots = state.where(table.below_fixed > 0)
    units = table.units()
    for slot in slots.tolist():
        free = _free_for(state, slot)
        count, size = int(table.count[slot]), int(table.fixed[slot])
        allowed = table.preference[:, slot] != NOT_ALLOWED
        left = int(free[table.type[slot]]) if count else int(free[: len(allowed)][allowed].max(initial=0))
        fits = left >= (size - count) * int(units[slot])
        table.min[slot] = size if fits else count or table.own_min[slot]
        table.desired[slot] = table.min[slot]  # some policies grant exactly this size or nothing


def _free_for(state: State, slot: int) -> Ints:
    """Free units per type, within what the limits of the job's queues and user leave."""
    world, table, queues = state.world, state.world.table, state.world.queues
    free = world.capacity_for(np.zeros(0, np.int64), int(table.node_class[slot]))
    if queues.trivial:
        return free
    types, slots = world.inventory.types, state.where(table.count > 0)
    units = (table.units() * table.count)[slots]
    used = queues.usage(table.queue[slots], table.type[slots], units, len(types))
    limits, guaranteed = queues.limits(types), queues.guarantees(types)
    for queue in queues.lineage(int(table.queue[slot])):
        most = limits[queue] if queues.values[queue].borrow else np.minimum(limits[queue], guaranteed[queue])
        free = np.minimum(free, most - used[queue])
    quotas = UserQuotas(table, queues, types)
    left = quotas.left(quotas.usage(slots, table.type[slots], units))
    return np.minimum(free, left[quotas.line[slot]].min(axis=0, initial=UNLIMITED))


def _in_view(state: State) -> Ints:
    """Like `visible`, without firm jobs."""
    table, options, guards = state.world.table, state.options, state.policy.guards
    while True:
        done, view, changed, state.guard_wake, state.left_out, near_end = survey.survey(
            table.ints,
            table.floats,
            table.order,
            state.now,
            options.min_run_s if guards.min_run else -math.inf,
            options.cooldown_s if guards.cooldown else -math.inf,
            guards.payback,
        )
        if done:
            break
        update_feasibility(state, changed)
    if len(changed):
        revert_targets(state, changed)
    if near_end:
        view = view[~_ends_soon(state, view, table.held[view] > 0)]
    return view


def waiting(state: State) -> Ints:
    """Like `visible`, restricted to pending jobs without a target; updates only their time accounts.

    All other jobs are out of view with their devices, so only free devices can be granted.
    """
    table = state.world.table
    while True:
        view, unjudged, state.left_out = survey.survey_pending(table.ints, table.floats, table.order, state.now)
        if not len(unjudged):
            return view
        update_feasibility(state, unjudged)


def guarded_until(state: State, slots: Ints) -> Floats:
    """When the minimum run time and the cool-down of these jobs end, if they run."""
    table, options, guards = state.world.table, state.options, state.policy.guards
    started, resized = table.started[slots], table.resized[slots]
    until = np.full(len(slots), -math.inf)
    # The minimum run time does not apply to jobs that are preemptible at once.
    at_once = table.preemptible[slots] == Preemptible.AT_ONCE
    if guards.min_run:
        until = np.where(at_once, until, started + options.min_run_s)
    if guards.cooldown:
        cools = ~at_once | (resized > started)
        until = np.where(cools, np.maximum(until, resized + options.cooldown_s), until)
    return until


def resizable_at(state: State, slots: Ints) -> Floats:
    """When these jobs may be resized despite the minimum run time, because a resize is cheap.

    Infinity if a resize is not cheap or its cost is unknown (0). The cool-down after a resize applies nevertheless.
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
    """Slots of jobs that only the minimum run time guards and that are cheap to resize; updates `guard_wake`."""
    if not state.asked_policy:
        return NO_ROWS
    slots, table = state.living(), state.world.table
    young = (table.phase[slots] == Phase.RUNNING) & (table.issued[slots] == 0) & (table.retry_at[slots] <= state.now)
    young &= (guarded_until(state, slots) > state.now) & in_range(state, slots) & ~state.protected()[slots]
    slots = slots[young]
    at = resizable_at(state, slots)
    later = at > state.now
    state.guard_wake = min(state.guard_wake, float(at[later].min(initial=math.inf)))
    return slots[~later]


def in_range(state: State, slots: Ints) -> Bools:
    """Which of these jobs have a size within their range."""
    table = state.world.table
    return np.asarray((table.min[slots] <= table.held[slots]) & (table.held[slots] <= table.max[slots]))


def _ends_soon(state: State, slots: Ints, running: Bools) -> Bools:
    """Which jobs will end before a restart pays off."""
    table = state.world.table
    soon = np.zeros(len(slots), bool)
    known = running & ~np.isnan(table.steps[slots]) & (table.resizes_in_place[slots] == 0) & in_range(state, slots)
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
