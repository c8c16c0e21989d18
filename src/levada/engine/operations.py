"""From held to target: which operation each job needs, and when it is issued.

An operation is issued when all devices that it adds are observed to be free. So release comes before acquire without a
barrier, and one slow checkpoint delays only the jobs that wait for its devices. A cycle of waiting jobs is broken at
its cheapest member, which stops and starts again.
"""

from __future__ import annotations

import numpy as np

from levada.core.assignment import DEVICE, NODE, SHARED, SLOT
from levada.core.commands import Apply
from levada.core.plan import OpKind, Plan
from levada.core.types import Bools, Ints
from levada.engine.held_devices import added_places, take
from levada.engine.resource_limits import limited, within_limits
from levada.engine.state import State
from levada.kernels import jobs, operations


def plan_operations(state: State, slots: Ints) -> None:
    """Set the operation of each of these jobs that leads from its held devices to its target."""
    table, target, held = state.world.table, state.world.target, state.world.held
    marks = state.flags(slots)
    if operations.plan_operations(table.ints, slots, marks, target.devices, target.rows, held.devices, held.rows):
        state.may_issue = state.may_cycle = True


def issue(state: State) -> None:
    """Issue every operation that is ready; break cycles of waiting jobs."""
    table, target, held = state.world.table, state.world.target, state.world.held
    at = (state.now, state.revision, state.options.op_timeout_s)
    planes = (target.devices, held.devices, held.claimed)
    incomplete, pauses, blocked, waits, sent, adds, drops = operations.issue(
        table.ints, table.floats, table.order, *at, state.may_cycle, *planes
    )
    if incomplete:
        waiting, missing = waits[0], waits[2]
        ready = _check_ready(state, waiting, waits[1] > 0)
        blocked = not ready.all()
        takes = waiting[ready & (table.op[waiting] != OpKind.STOP)]
        first = not table.held[takes].any()
        sent, adds, drops = operations.send(table.ints, table.floats, waiting, ready, missing, *at, *planes)
        _take_special(state, takes, adds[0], first=first)
    state.may_cycle, state.unsent = False, pauses or blocked
    if sent.shape[1]:
        _apply(state, sent, adds, drops)


def _apply(state: State, sent: Ints, adds: Ints, drops: Ints) -> None:
    """Emit `Apply` with the issued operations."""
    state.set_timer(state.now + state.options.op_timeout_s)
    number, kind, generation, gpu_type, count = sent
    plan = Plan(
        number=number,
        kind=kind,
        generation=generation,
        type=gpu_type,
        count=count,
        add_device=adds[0],
        add_row=adds[1],
        drop_device=drops[0],
        drop_row=drops[1],
    )
    state.commands.append(Apply(plan=plan))


def _check_ready(state: State, waiting: Ints, ready: Bools) -> Bools:
    """Which of these operations are ready with respect to CPU, memory and GPU fractions; breaks cycles."""
    table = state.world.table
    if limited(state, waiting):
        adding = (ready & (table.op[waiting] != OpKind.STOP)).nonzero()[0]
        ready[adding] = within_limits(state, waiting[adding])
    # Without any operation in progress, a blocked job would stay blocked.
    if not ready.all() and (state.may_cycle or not (ready.any() or (table.issued[table.order] > 0).any())):
        ready |= _break_cycles(state, waiting, ready)
    return ready


def _take_special(state: State, slots: Ints, devices: Ints, *, first: bool) -> None:
    """Add targets of the special jobs among *slots*, devices and rows, to what they hold."""
    table = state.world.table
    special = jobs.special_among(table.ints, slots)
    if len(special):
        take(state, special, devices[state.flags(special)[state.world.target.owner[devices]]], first=first)


def _break_cycles(state: State, waiting: Ints, ready: Bools) -> Bools:
    """Turn operations in cycles into stops; returns which of the waiting operations these are."""
    table = state.world.table
    stuck = waiting[~ready].tolist()
    blockers = _blockers(state, stuck)
    flow = _Flow(blockers, {*waiting[ready].tolist(), *state.where(table.issued > 0).tolist()})
    holding = [slot for slot in stuck if table.held[slot] > 0]
    # A job without blockers blocks itself: it moves within a full node.
    stops = [slot for slot in holding if not blockers[slot]]
    # The set of stuck jobs only shrinks, so one pass is enough.
    for slot in sorted(holding, key=lambda slot: (table.held[slot] * table.milli[slot], -table.number[slot])):
        if flow.is_blocking(slot):
            stops.append(slot)
            flow.unblock(slot)
    table.op[stops] = OpKind.STOP
    return state.flags(np.array(stops, np.int64))[waiting]


class _Flow:
    """The jobs that will proceed: those that move, and those whose blockers all proceed."""

    def __init__(self, blockers: dict[int, set[int]], moving: set[int]) -> None:
        self._waiters: dict[int, list[int]] = {}
        for slot, ahead in blockers.items():
            for blocker in ahead:
                self._waiters.setdefault(blocker, []).append(slot)
        self._blocked_by = {slot: len(ahead) for slot, ahead in blockers.items()}
        self._proceeding: set[int] = set()
        for slot in moving.union(slot for slot, ahead in blockers.items() if not ahead):
            self.unblock(slot)

    def is_blocking(self, slot: int) -> bool:
        """Whether the job is stuck and another stuck job waits for it."""
        stuck = slot not in self._proceeding
        return stuck and any(waiter not in self._proceeding for waiter in self._waiters.get(slot, ()))

    def unblock(self, slot: int) -> None:
        """Let the job proceed, and with it all jobs that waited only for it."""
        todo = [slot]
        while todo:
            job = todo.pop()
            if job in self._proceeding:
                continue
            self._proceeding.add(job)
            for waiter in self._waiters.get(job, ()):
                self._blocked_by[waiter] -= 1
                if not self._blocked_by[waiter]:
                    todo.append(waiter)


def _blockers(state: State, stuck: list[int]) -> dict[int, set[int]]:
    """For each stuck job, the jobs that hold its target devices."""
    world, table = state.world, state.world.table
    target, held = world.target, world.held
    blockers: dict[int, set[int]] = {slot: set() for slot in stuck}
    waits = ((target.owner >= 0) & (held.owner >= 0) & (held.owner != target.owner)).nonzero()[0]
    for taker, holder in zip(target.owner[waits].tolist(), held.owner[waits].tolist(), strict=True):
        if taker in blockers:
            blockers[taker].add(holder)
    shared = (target.owner >= 0) & (held.owner == SHARED)
    parts = held.rows[:, held.rows[DEVICE] >= 0]
    parts = parts[:, shared[parts[DEVICE]]]
    for taker, holder in zip(target.owner[parts[DEVICE]].tolist(), parts[SLOT].tolist(), strict=True):
        if taker in blockers:
            blockers[taker].add(holder)
    for slot in stuck:
        if not blockers[slot]:
            # It lacks CPU, memory or a GPU fraction: all jobs on its nodes with an operation may be in its way.
            nodes = np.unique(added_places(state, slot)[NODE])
            on_nodes = held.owner[np.isin(world.inventory.node_of, nodes)]
            others = set(on_nodes[on_nodes >= 0].tolist()) | set(held.rows[0][np.isin(held.rows[NODE], nodes)].tolist())
            blockers[slot] = {other for other in others if other != slot and table.op[other] != OpKind.NONE}
    return blockers
