"""From a decision to targets: rows out of date drop out, places are found, the rules are asked, and then it counts.

A row that breaks a rule by itself sets its job aside and the rest is tried again; any other breach rejects the whole
decision and changes nothing.
"""

from __future__ import annotations

import numpy as np

from levada.core.decision import Decision
from levada.core.invariants import (
    Proposal,
    Violation,
    check,
    i1_no_device_beyond_whole,
    i12_nodes_within_limits,
    i13_queues_within_limits,
    i13_users_within_limits,
)
from levada.core.job import Phase
from levada.core.plane import DEVICE, FREE, MILLI, SHARED, SLOT
from levada.core.reasons import PACKED, Code
from levada.core.types import CPU_TYPE, WHOLE, Bools, Ints
from levada.engine import steps
from levada.engine.operations import plan_operations
from levada.engine.shape import column_fault, shape_fault
from levada.engine.state import State, outlasts
from levada.engine.tidy import tidy, workers_on
from levada.placement.placer import Placer


class Rejected(Exception):
    """The decision cannot be carried out; the text says why. It never leaves the engine."""


def commit(state: State, placer: Placer, decision: Decision) -> None:
    """Makes *decision* the target of all jobs that it still speaks of, or raises `Rejected` and changes nothing."""
    if (fault := column_fault(decision)) is not None:
        raise Rejected(fault)
    if steps.commit(state, decision):
        return
    if not np.array_equal(decision.number, state.in_view):
        raise Rejected("it must speak of all jobs that it was shown, in their order")
    if (fault := shape_fault(state.world, decision)) is not None:
        raise Rejected(fault)
    by_number = decision.places is not None or decision.reservations or decision.binds
    if by_number and state.deciding is not None and state.renumbered > state.deciding:
        raise Rejected("devices were numbered anew while it was made")
    rows, slots = _rows_that_count(state, decision)
    aside: list[int] = []
    while True:
        keep = ~state.flags(np.array(aside, np.int64))[slots]
        proposal, reached = _propose(state, placer, decision, rows[keep], slots[keep])
        violations = check(state.world, proposal)
        if not violations:
            break
        guilty = {violation.slot for violation in violations}
        # One job's fault is that job's; the fault of many is the policy's.
        many = len(aside) + len(guilty) > int(np.count_nonzero(decision.count[rows])) // 2
        if many or -1 in guilty or guilty <= set(aside) or not guilty <= set(slots[keep].tolist()):
            raise Rejected(_sentence(state, violations))
        aside += sorted(guilty)
    _accept(state, decision, rows[keep], slots[keep], proposal, reached)
    for slot in aside:
        table = state.world.table
        table.failures[slot] += 1
        state.pause(slot, state.backoff(int(table.number[slot]), int(table.failures[slot])))
        if table.phase[slot] == Phase.PENDING:
            state.say(np.array([slot]), Code.REJECTED)


def _rows_that_count(state: State, decision: Decision) -> tuple[Ints, Ints]:
    """Rows whose job has not changed since it was shown, and is not being operated on; and their slots."""
    table = state.world.table
    slots = table.find(decision.number)
    revision = state.deciding if state.deciding is not None else -1
    fresh = slots >= 0
    fresh[fresh] &= (table.changed[slots[fresh]] <= revision) & (table.issued[slots[fresh]] == 0)
    rows = fresh.nonzero()[0]
    # What was said of the others must be thought of again.
    state.left_out |= len(rows) < len(decision.number)
    return rows, slots[rows]


def _propose(state: State, placer: Placer, decision: Decision, rows: Ints, slots: Ints) -> tuple[Proposal, Ints]:
    world, table = state.world, state.world.table
    kind, count = table.type.copy(), table.count.copy()
    given = decision.count[rows]
    want_type = np.where(given > 0, decision.type[rows], -1)
    plane = world.target.copy()
    kind[slots], count[slots] = want_type, given
    proposal = Proposal(plane=plane, type=kind, count=count, slots=slots, protected=state.protected())
    reached = given.copy()
    sound = (given >= 0) & (want_type < len(world.inventory.types)) & (want_type >= np.where(given > 0, 0, -1))
    sound &= (given == 0) | ((want_type == CPU_TYPE) == (table.milli[slots] == 0))
    if not sound.all():
        return proposal, reached  # I3 and I4 will say so
    differs = (want_type != table.type[slots]) | (given != table.count[slots])
    if decision.places is not None and decision.placed is not None:
        said = _placed(decision)[rows] | (given == 0)
        slot_of = np.full(len(decision.number), -1, np.int64)
        slot_of[rows[said]] = slots[said]
        places = decision.places.astype(np.int64)
        places[SLOT] = slot_of[places[SLOT]]
        # Whoever goes elsewhere leaves before others come.
        world.clear_workers(plane, slots[~said & (table.count[slots] > 0) & (want_type != table.type[slots])])
        world.replace_workers(plane, slots[said], places[:, places[SLOT] >= 0])
        differs &= ~said
    at = differs.nonzero()[0]
    if len(at):
        reached[at] = placer.place(world, plane, slots[at], want_type[at], given[at])
    if state.options.move_budget > 0 and decision.places is None:
        better = tidy(state, plane, slots, want_type, given, reached)
        if better is not None:
            plane.take_from(better)
            reached = np.where(reached > 0, reached, workers_on(state, plane, slots))
    count[slots] = reached
    kind[slots] = np.where(reached > 0, want_type, -1)
    _stay(state, proposal, slots[(given > 0) & (reached == 0) & (table.count[slots] > 0)])
    return proposal, reached


def _placed(decision: Decision) -> Bools:
    """Per row whether the decision says itself where the job goes."""
    marks = np.zeros(len(decision.number), bool)
    if decision.places is not None and decision.placed is not None:
        marks[decision.placed] = True
    return marks


def _stay(state: State, proposal: Proposal, slots: Ints) -> None:
    """These jobs were to change their type and found no room: they stay as they are where nobody else comes."""
    world, table, plane = state.world, state.world.table, proposal.plane
    for slot in slots:
        places = world.places(world.target, int(slot))
        on_device = places[:, places[DEVICE] >= 0]
        owner = plane.owner[on_device[DEVICE]]
        if not ((owner == FREE) | ((owner == SHARED) & (on_device[MILLI] < WHOLE))).all():
            continue
        world.put_workers(plane, int(slot), places)
        proposal.type[slot], proposal.count[slot] = table.type[slot], table.count[slot]
        # Others may have been given what it was to leave of a device, a node or its queue.
        crowded = i1_no_device_beyond_whole(world, plane, world.target) or i12_nodes_within_limits(world, plane)
        if crowded or i13_queues_within_limits(world, proposal) or i13_users_within_limits(world, proposal):
            world.clear_workers(plane, int(slot))
            proposal.type[slot], proposal.count[slot] = -1, 0


def _accept(state: State, decision: Decision, rows: Ints, slots: Ints, proposal: Proposal, reached: Ints) -> None:
    world, table = state.world, state.world.table
    had = table.count[slots].copy()
    changed = (table.count[slots] != proposal.count[slots]) | (table.type[slots] != proposal.type[slots])
    changed |= _placed(decision)[rows]
    elsewhere = world.target.owner != proposal.plane.owner
    movers = np.concatenate([world.target.owner[elsewhere], proposal.plane.owner[elsewhere]])
    changed |= state.flags(movers[movers >= 0])[slots]
    world.target.take_from(proposal.plane)
    table.type[slots] = proposal.type[slots]
    table.count[slots] = proposal.count[slots]
    table.has_rows[slots] = table.needs_rows(slots) | _on_rows(state, slots)
    waits = table.phase[slots] == Phase.PENDING
    reason, evidence = decision.reason[rows].copy(), decision.evidence[rows].copy()
    given = table.count[slots] > 0
    short = (reached < decision.count[rows]) & ~given
    reason[short], evidence[short] = Code.FRAGMENTED, 0
    reason[given & waits] = Code.STARTING
    # Whoever waits though it ran before was preempted, unless there is more to say.
    reason[~given & (reason == Code.RUNS)] = Code.CAPACITY
    ran = (table.first_started[slots] < np.inf) & (reason == Code.CAPACITY)
    stopped = ran & ~given
    reason[stopped] = Code.PREEMPTED
    cause = table.stopped_by[slots]
    if ((cause % PACKED == Code.DRAINED) & given).any():
        reason[stopped & (had > 0)] = Code.MADE_ROOM
    untold = stopped & (cause > 0)
    reason[untold], evidence[untold] = cause[untold] % PACKED, cause[untold] // PACKED
    known = stopped & outlasts(table.reason[slots])
    reason[known], evidence[known] = table.reason[slots[known]], table.evidence[slots[known]]
    table.reason[slots], table.evidence[slots] = reason, evidence
    table.batch[slots] = 0 if decision.batch is None else decision.batch[rows]
    rank = rows if decision.rank is None else decision.rank[rows]
    table.rank[slots] = np.where(rank >= 0, rank, table.rank[slots])
    plan_operations(state, slots[changed | (had != table.count[slots])])


def _on_rows(state: State, slots: Ints) -> Bools:
    """Which of these jobs have rows now, or shall have some: those that are packed, besides those that always do."""
    marks = state.flags(state.world.target.rows[SLOT])
    marks[state.world.held.rows[SLOT]] = True
    return marks[slots]


def _sentence(state: State, violations: list[Violation]) -> str:
    first = violations[0]
    job = state.world.ids.get(int(state.world.table.number[first.slot]), "") if first.slot >= 0 else ""
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    return f"{first.rule}: {job + ': ' if job else ''}{first.text}{more}"
