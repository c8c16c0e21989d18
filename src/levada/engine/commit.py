"""Commit a decision: drop stale rows, place, check, replace the target.

If single rows violate an invariant, the engine drops these rows and tries the rest again. Any other violation rejects
the whole decision and changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from levada.core.assignment import DEVICE, FREE, MILLI, SHARED, SLOT, Assignment
from levada.core.decision import Decision
from levada.core.job import Phase
from levada.core.reasons import Code
from levada.core.types import WHOLE, Bools, Ints
from levada.engine import eligibility
from levada.engine.move_cost import defragment_targets, workers_on
from levada.engine.state import State
from levada.engine.validate_decision import shape_fault
from levada.kernels import commit as kernel
from levada.placement.placer import Packer, Placer
from levada.tables.invariants import (
    Proposal,
    bad_sizes,
    check,
    i1_no_device_beyond_whole,
    i12_nodes_within_limits,
    i13_queues_within_limits,
    i13_users_within_limits,
)
from levada.tables.placement_rows import NOWHERE
from levada.tables.violations import Violation

_FAULTS = {
    kernel.NOT_IN_VIEW: "it must have one row for each job in the snapshot, in the same order",
    kernel.BAD_REASON: "it has a reason code that does not exist or that policies may not set",
}
_NO_ROWS = np.zeros(0, np.int64)
_PROTECTED_BY_TABLE = np.zeros(0, bool)


class Rejected(Exception):
    """The decision is invalid; the text says why. It never leaves the engine."""


def commit(state: State, placer: Placer, decision: Decision) -> None:
    """Make *decision* the target of all jobs that have not changed since.

    Raises `Rejected`, or `Unplaced` if grants do not fit on eligible nodes, and then changes nothing.
    """
    if (fault := shape_fault(state.world, decision)) is not None:
        raise Rejected(fault)
    uses_numbers = decision.places is not None or decision.reservations or decision.binds
    if uses_numbers and state.deciding is not None and state.renumbered > state.deciding:
        raise Rejected("the cluster changed and devices were renumbered during the decision")
    columns, dropped = _block(decision), _NO_ROWS
    if _commit_at_once(state, placer, decision, columns):
        return
    rows = _match(state, columns, dropped)
    # Jobs whose rows were dropped need another decision.
    state.left_out |= not rows.complete
    granted = np.count_nonzero(columns[kernel.COUNT][rows.slots >= 0])
    while violations := _attempt(state, placer, decision, columns, rows):
        culprits = {violation.slot for violation in violations}
        decided = rows.slots[rows.slots >= 0].tolist()
        # Violations by few jobs are blamed on these jobs, violations by many on the policy.
        if len(dropped) + len(culprits) > granted // 2 or not culprits <= set(decided):
            raise Rejected(_describe(state, violations))
        dropped = np.append(dropped, sorted(culprits))
        rows = _match(state, columns, dropped)
    table = state.world.table
    for slot in dropped.tolist():
        table.failures[slot] += 1
        state.pause(slot, state.backoff(int(table.number[slot]), int(table.failures[slot])))
        if table.phase[slot] == Phase.PENDING:
            state.set_reason(np.array([slot]), Code.REJECTED)


def _commit_at_once(state: State, placer: Placer, decision: Decision, columns: Ints) -> bool:
    """Commit in one kernel call; returns False if the decision needs the separate steps below."""
    world = state.world
    table, target, held, allocatable = world.table, world.target, world.held, world.inventory.allocatable
    if not isinstance(placer, Packer) or decision.places is not None or not world.queues.unlimited:
        return False
    if state.options.move_budget > 0 or state.deciding is None:
        return False
    done, complete, follows = kernel.commit(
        columns,
        decision.rank is not None,
        decision.batch is not None,
        state.in_view,
        state.deciding,
        table.ints,
        table.floats,
        table.preference,
        *table.index,
        target.devices,
        target.nodes,
        target.rows,
        held.devices,
        held.rows,
        allocatable.devices,
        allocatable.nodes,
        allocatable.pools,
        placer.highest_first,
    )
    if done:
        state.left_out |= not complete
        if follows:
            state.may_issue = state.may_cycle = True
    return done


class _Rows(NamedTuple):
    """Rows of a decision, matched with jobs."""

    #: The slot of each row; -1 for dropped rows.
    slots: Ints
    #: Rows whose grant changes.
    moving: Ints
    #: Slots of jobs whose new size is not allowed.
    bad: Ints
    #: No row was dropped.
    complete: bool


def _block(decision: Decision) -> Ints:
    """The columns of a decision as one array, in the order of `kernels.commit`."""
    columns = [decision.number, decision.type, decision.count, decision.reason, decision.evidence]
    columns += [column for column in (decision.rank, decision.batch) if column is not None]
    return np.array(columns, np.int64)


def _match(state: State, columns: Ints, dropped: Ints) -> _Rows:
    """Match rows with jobs, without jobs that changed since the snapshot and those in *dropped*."""
    table = state.world.table
    deciding = state.deciding if state.deciding is not None else -1
    fault, slots, moving, bad, complete = kernel.match(
        columns, table.ints, table.preference, *table.index, state.in_view, deciding, dropped
    )
    if fault:
        raise Rejected(_FAULTS[fault])
    return _Rows(slots, moving, bad, complete)


def _attempt(state: State, placer: Placer, decision: Decision, columns: Ints, rows: _Rows) -> list[Violation]:
    """Make the matched rows the target, or return their violations and change nothing."""
    if len(rows.bad):
        return bad_sizes(columns, rows.slots, rows.bad)
    proposal = _propose(state, placer, decision, columns, rows)
    if violations := check(state.world, proposal):
        return violations
    eligibility.check_placed(state, rows.slots, columns[kernel.COUNT], proposal.count)
    _accept(state, decision, columns, rows.slots, proposal)
    return []


def _propose(state: State, placer: Placer, decision: Decision, columns: Ints, rows: _Rows) -> Proposal:
    """The target that results from the decision, on a copy."""
    world, table, plane = state.world, state.world.table, state.world.target.copy()
    slots, moving, placed, wanted = rows.slots, rows.moving, _NO_ROWS, columns[kernel.COUNT]
    if decision.places is not None and decision.placed is not None:
        by_policy = _put_places(state, plane, columns, rows, *_placed(decision))
        placed, moving = moving[by_policy[moving]], moving[~by_policy[moving]]
    chosen, reached = slots[moving], wanted[moving]
    if len(moving):
        reached = placer.place(world, plane, chosen, columns[kernel.TYPE][moving], reached)
    if state.options.move_budget > 0 and decision.places is None:
        reached = _defragment(state, plane, columns, slots, moving, reached)
    if table.node_class[chosen].any():
        by_row = np.where(slots >= 0, table.count[slots], 0)
        by_row[moving] = reached
        eligibility.make_room(state, plane, slots, columns[kernel.TYPE], wanted, by_row)
        moving = np.union1d(moving, ((slots >= 0) & (by_row != table.count[slots])).nonzero()[0])
        chosen, reached = slots[moving], by_row[moving]
    at, sizes = moving, reached
    if len(placed):
        at, sizes = np.concatenate([moving, placed]), np.concatenate([reached, wanted[placed]])
    gpu_type, count = kernel.grants(table.ints, columns, slots, at, sizes)
    decided = slots if rows.complete else slots[slots >= 0]
    proposal = Proposal(plane=plane, type=gpu_type, count=count, slots=decided, protected=_PROTECTED_BY_TABLE)
    if not reached.all():
        _keep_places(state, proposal, chosen[(reached == 0) & (wanted[moving] > 0) & (table.count[chosen] > 0)])
    return proposal


def _put_places(state: State, plane: Assignment, columns: Ints, rows: _Rows, placed: Ints, places: Ints) -> Bools:
    """Put jobs on the devices that the decision names and remove jobs of count 0; returns which rows these are."""
    world, table, slots, moving = state.world, state.world.table, rows.slots, rows.moving
    by_policy, special = kernel.split_placed(columns, table.ints, slots, placed, places)
    # Jobs that change their type release their devices first.
    others = moving[~by_policy[moving]]
    leaving = slots[others]
    leaving = leaving[(table.count[leaving] > 0) & (table.type[leaving] != columns[kernel.TYPE][others])]
    if len(leaving) or len(special):
        world.clear_workers(plane, np.concatenate([leaving, special]))
    kernel.assign_whole(plane.devices, slots, by_policy, places, special, table.capacity)
    if len(special):
        by_slot = places.copy()
        by_slot[SLOT] = slots[by_slot[SLOT]]
        world.add_places(plane, by_slot[:, np.isin(by_slot[SLOT], special)])
    return by_policy


def _defragment(state: State, plane: Assignment, columns: Ints, slots: Ints, moving: Ints, reached: Ints) -> Ints:
    """Move jobs on *plane* if that pays; returns the resulting sizes of the jobs in *moving* rows."""
    rows = (slots >= 0).nonzero()[0]
    wanted = columns[kernel.COUNT].copy()
    sizes = wanted.copy()
    sizes[moving] = reached
    gpu_type = np.where(wanted > 0, columns[kernel.TYPE], -1)
    better = defragment_targets(state, plane, slots[rows], gpu_type[rows], wanted[rows], sizes[rows])
    if better is None:
        return reached
    plane.take_from(better)
    return np.where(reached > 0, reached, workers_on(state, plane, slots[moving]))


def _keep_places(state: State, proposal: Proposal, slots: Ints) -> None:
    """Keep jobs that cannot change their type where they are, unless other jobs got their devices."""
    world, table, plane = state.world, state.world.table, proposal.plane
    for slot in slots:
        places = world.places(world.target, int(slot))
        on_device = places[:, places[DEVICE] >= 0]
        owner = plane.owner[on_device[DEVICE]]
        if not ((owner == FREE) | ((owner == SHARED) & (on_device[MILLI] < WHOLE))).all():
            continue
        world.put_workers(plane, int(slot), places)
        proposal.type[slot], proposal.count[slot] = table.type[slot], table.count[slot]
        # Other jobs may have got its part of a device, a node or its queue.
        crowded = i1_no_device_beyond_whole(world, plane, world.target) or i12_nodes_within_limits(world, plane)
        if crowded or i13_queues_within_limits(world, proposal) or i13_users_within_limits(world, proposal):
            world.clear_workers(plane, int(slot))
            proposal.type[slot], proposal.count[slot] = -1, 0


def _placed(decision: Decision) -> tuple[Ints, Ints]:
    """The rows that a decision places itself, and their places.

    These are copies: arrays of a replayed decision are read-only, and kernels are compiled for writable arrays.
    """
    if decision.placed is None or decision.places is None:
        return _NO_ROWS, NOWHERE
    return np.array(decision.placed, np.int64), np.array(decision.places, np.int64, order="C")


def _accept(state: State, decision: Decision, columns: Ints, slots: Ints, proposal: Proposal) -> None:
    table, target, held = state.world.table, state.world.target, state.world.held
    plane, (placed, _) = proposal.plane, _placed(decision)
    follows = kernel.accept(
        columns,
        decision.rank is not None,
        decision.batch is not None,
        slots,
        placed,
        proposal.type,
        proposal.count,
        table.ints,
        table.floats,
        target.devices,
        plane.devices,
        plane.rows,
        held.devices,
        held.rows,
    )
    np.copyto(target.nodes, plane.nodes)
    target.rows = plane.rows
    if follows:
        state.may_issue = state.may_cycle = True


def _describe(state: State, violations: list[Violation]) -> str:
    first = violations[0]
    job = state.world.ids.get(int(state.world.table.number[first.slot]), "") if first.slot >= 0 else ""
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    return f"{first.rule}: {job + ': ' if job else ''}{first.text}{more}"
