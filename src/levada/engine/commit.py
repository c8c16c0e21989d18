"""Commit a decision: drop stale rows, find places, check the invariants, and make the result the target.

A row that breaks a rule by itself sets its job aside, and the rest is tried again; any other breach rejects the whole
decision and changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from levada.core.decision import Decision
from levada.core.job import Phase
from levada.core.plane import DEVICE, FREE, MILLI, SHARED, SLOT, Plane
from levada.core.reasons import Code
from levada.core.types import WHOLE, Bools, Ints
from levada.engine.shape import shape_fault
from levada.engine.state import State
from levada.engine.tidy import tidy, workers_on
from levada.kernels import commit as kernel
from levada.placement.placer import Packer, Placer
from levada.tables.invariants import (
    Proposal,
    Violation,
    bad_sizes,
    check,
    i1_no_device_beyond_whole,
    i12_nodes_within_limits,
    i13_queues_within_limits,
    i13_users_within_limits,
)
from levada.tables.places import NOWHERE

_FAULTS = {
    kernel.NOT_IN_VIEW: "it must speak of all jobs that it was shown, in their order",
    kernel.BAD_REASON: "it gives a reason that does not exist, or that no policy can know",
}
_NO_ROWS = np.zeros(0, np.int64)
_AS_THE_TABLE_SAYS = np.zeros(0, bool)


class Rejected(Exception):
    """The decision cannot be carried out; the text says why. It never leaves the engine."""


def commit(state: State, placer: Placer, decision: Decision) -> None:
    """Make *decision* the target of all jobs that it still speaks of, or raise `Rejected` and change nothing."""
    if (fault := shape_fault(state.world, decision)) is not None:
        raise Rejected(fault)
    by_number = decision.places is not None or decision.reservations or decision.binds
    if by_number and state.deciding is not None and state.renumbered > state.deciding:
        raise Rejected("devices were numbered anew while it was made")
    said, aside = _block(decision), _NO_ROWS
    if _commit_at_once(state, placer, decision, said):
        return
    rows = _match(state, said, aside)
    # What was said of the others must be decided again.
    state.left_out |= not rows.complete
    asked = np.count_nonzero(said[kernel.COUNT][rows.slots >= 0])
    while violations := _attempt(state, placer, decision, said, rows):
        guilty = {violation.slot for violation in violations}
        spoken = rows.slots[rows.slots >= 0].tolist()
        # One job's fault is that job's; the fault of many is the policy's.
        if len(aside) + len(guilty) > asked // 2 or not guilty <= set(spoken):
            raise Rejected(_sentence(state, violations))
        aside = np.append(aside, sorted(guilty))
        rows = _match(state, said, aside)
    table = state.world.table
    for slot in aside.tolist():
        table.failures[slot] += 1
        state.pause(slot, state.backoff(int(table.number[slot]), int(table.failures[slot])))
        if table.phase[slot] == Phase.PENDING:
            state.say(np.array([slot]), Code.REJECTED)


def _commit_at_once(state: State, placer: Placer, decision: Decision, said: Ints) -> bool:
    """Commit in one call of the kernels that the steps below are made of; False: they must be taken one by one."""
    world = state.world
    table, target, held, openings = world.table, world.target, world.held, world.inventory.openings
    if not isinstance(placer, Packer) or decision.places is not None or not world.queues.unlimited:
        return False
    if state.options.move_budget > 0 or state.deciding is None:
        return False
    done, complete, follows = kernel.commit(
        said,
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
        openings.devices,
        openings.nodes,
        openings.pools,
        placer.highest_first,
    )
    if done:
        state.left_out |= not complete
        if follows:
            state.may_issue = state.may_cycle = True
    return done


class _Rows(NamedTuple):
    """What the rows of a decision are about."""

    #: Per row the slot of its job, -1 where the row does not count.
    slots: Ints
    #: Rows whose grant changes.
    moving: Ints
    #: Slots of jobs whose new size is not allowed.
    bad: Ints
    #: All rows count.
    complete: bool


def _block(decision: Decision) -> Ints:
    """The columns of a decision, as `kernels.commit` wants them."""
    columns = [decision.number, decision.type, decision.count, decision.reason, decision.evidence]
    columns += [column for column in (decision.rank, decision.batch) if column is not None]
    return np.concatenate(columns, dtype=np.int64).reshape(len(columns), -1)


def _match(state: State, said: Ints, aside: Ints) -> _Rows:
    """The rows that count: of jobs that have not changed since they were shown, and are not in *aside*."""
    table = state.world.table
    deciding = state.deciding if state.deciding is not None else -1
    fault, slots, moving, bad, complete = kernel.match(
        said, table.ints, table.preference, *table.index, state.in_view, deciding, aside
    )
    if fault:
        raise Rejected(_FAULTS[fault])
    return _Rows(slots, moving, bad, complete)


def _attempt(state: State, placer: Placer, decision: Decision, said: Ints, rows: _Rows) -> list[Violation]:
    """Make the rows that count the target; or return what is wrong with them, and change nothing."""
    if len(rows.bad):
        return bad_sizes(said, rows.slots, rows.bad)
    spoken = rows.slots if rows.complete else rows.slots[rows.slots >= 0]
    proposal = _propose(state, placer, decision, said, rows, spoken)
    if violations := check(state.world, proposal):
        return violations
    _accept(state, decision, said, rows.slots, proposal)
    return []


def _propose(state: State, placer: Placer, decision: Decision, said: Ints, rows: _Rows, spoken: Ints) -> Proposal:
    """What the decision makes of the target, on a copy of it."""
    world, table, plane = state.world, state.world.table, state.world.target.copy()
    slots, moving, settled, asked = rows.slots, rows.moving, _NO_ROWS, said[kernel.COUNT]
    if decision.places is not None and decision.placed is not None:
        stands = _put_places(state, plane, said, slots, moving, *_placed(decision))
        settled, moving = moving[stands[moving]], moving[~stands[moving]]
    chosen, reached = slots[moving], asked[moving]
    if len(moving):
        reached = placer.place(world, plane, chosen, said[kernel.TYPE][moving], reached)
    if state.options.move_budget > 0 and decision.places is None:
        reached = _defragment(state, plane, said, slots, moving, reached)
    at, sizes = moving, reached
    if len(settled):
        at, sizes = np.concatenate([moving, settled]), np.concatenate([reached, asked[settled]])
    kind, count = kernel.grants(table.ints, said, slots, at, sizes)
    proposal = Proposal(plane=plane, type=kind, count=count, slots=spoken, protected=_AS_THE_TABLE_SAYS)
    if not reached.all():
        _stay(state, proposal, chosen[(reached == 0) & (asked[moving] > 0) & (table.count[chosen] > 0)])
    return proposal


def _put_places(state: State, plane: Plane, said: Ints, slots: Ints, moving: Ints, placed: Ints, places: Ints) -> Bools:
    """Puts jobs where the decision says itself, and takes those of count 0 off *plane*; which rows these are."""
    world, table = state.world, state.world.table
    stands, special = kernel.settle(said, table.ints, slots, placed, places)
    # A job that goes elsewhere leaves before others come.
    others = moving[~stands[moving]]
    leaves = slots[others]
    leaves = leaves[(table.count[leaves] > 0) & (table.type[leaves] != said[kernel.TYPE][others])]
    if len(leaves) or len(special):
        world.clear_workers(plane, np.concatenate([leaves, special]))
    kernel.put_whole(plane.devices, slots, stands, places, special, table.capacity)
    if len(special):
        rows = places.copy()
        rows[SLOT] = slots[rows[SLOT]]
        world.add_places(plane, rows[:, np.isin(rows[SLOT], special)])
    return stands


def _defragment(state: State, plane: Plane, said: Ints, slots: Ints, moving: Ints, reached: Ints) -> Ints:
    """Moves jobs on *plane* where that is worth it; the sizes that the jobs of *moving* rows have then."""
    rows = (slots >= 0).nonzero()[0]
    asked = said[kernel.COUNT].copy()
    sizes = asked.copy()
    sizes[moving] = reached
    kind = np.where(asked > 0, said[kernel.TYPE], -1)
    better = tidy(state, plane, slots[rows], kind[rows], asked[rows], sizes[rows])
    if better is None:
        return reached
    plane.take_from(better)
    return np.where(reached > 0, reached, workers_on(state, plane, slots[moving]))


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


def _placed(decision: Decision) -> tuple[Ints, Ints]:
    """The rows that a decision places itself, and their places.

    As copies: those of a replayed decision are read-only, and kernels are compiled for arrays that are not.
    """
    if decision.placed is None or decision.places is None:
        return _NO_ROWS, NOWHERE
    return np.array(decision.placed, np.int64), np.array(decision.places, np.int64, order="C")


def _accept(state: State, decision: Decision, said: Ints, slots: Ints, proposal: Proposal) -> None:
    table, target, held = state.world.table, state.world.target, state.world.held
    plane, (placed, _) = proposal.plane, _placed(decision)
    follows = kernel.accept(
        said,
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


def _sentence(state: State, violations: list[Violation]) -> str:
    first = violations[0]
    job = state.world.ids.get(int(state.world.table.number[first.slot]), "") if first.slot >= 0 else ""
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    return f"{first.rule}: {job + ': ' if job else ''}{first.text}{more}"
