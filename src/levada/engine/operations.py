"""From held to target: which operation each job needs, and when it may go out.

An operation goes out when all it adds is observed to be free. So release comes before acquire without a barrier, and
one slow checkpoint holds up only the jobs that wait for its devices. A cycle of waits is broken at its cheapest member,
which stops and starts again.
"""

from __future__ import annotations

import numpy as np

from levada.core.commands import Apply
from levada.core.plan import OpKind, Plan
from levada.core.plane import DEVICE, NODE, SHARED, SLOT
from levada.core.types import Bools, Ints
from levada.engine.holdings import added_places, take
from levada.engine.limits import limited, within_limits
from levada.engine.state import State
from levada.kernels import jobs, operations


def plan_operations(state: State, slots: Ints) -> None:
    """Note for each of these jobs the operation that leads from what it holds to its target."""
    table, target, held = state.world.table, state.world.target, state.world.held
    marks = state.flags(slots)
    if operations.plan_operations(table.ints, slots, marks, target.devices, target.rows, held.devices, held.rows):
        state.may_issue = state.may_cycle = True


def issue(state: State) -> None:
    """Send every operation that may go out; break cycles of waits."""
    table, target, held = state.world.table, state.world.target, state.world.held
    at = (state.now, state.revision, state.options.op_timeout_s)
    planes = (target.devices, held.devices, held.claimed)
    must_look, pauses, blocked, waiting, ready, missing, sent, adds, drops = operations.issue(
        table.ints, table.floats, table.order, *at, state.may_cycle, *planes
    )
    if must_look:
        ready = _look(state, waiting, ready)
        blocked = not ready.all()
        takes = waiting[ready & (table.op[waiting] != OpKind.STOP)]
        first = not table.held[takes].any()
        sent, adds, drops = operations.send(table.ints, table.floats, waiting, ready, missing, *at, *planes)
        _take_special(state, takes, adds[0], first=first)
    state.may_cycle, state.unsent = False, pauses or blocked
    if sent.shape[1]:
        _apply(state, sent, adds, drops)


def _apply(state: State, sent: Ints, adds: Ints, drops: Ints) -> None:
    """Tell the backend what was sent."""
    state.alarm(state.now + state.options.op_timeout_s)
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


def _look(state: State, waiting: Ints, ready: Bools) -> Bools:
    """Which of these operations may go out within cores, memory and parts of devices, once cycles are broken."""
    table = state.world.table
    if limited(state, waiting):
        asks = (ready & (table.op[waiting] != OpKind.STOP)).nonzero()[0]
        ready[asks] = within_limits(state, waiting[asks])
    # Where nothing moves at all, a job that is stuck stays stuck.
    if not ready.all() and (state.may_cycle or not (ready.any() or (table.issued[table.order] > 0).any())):
        ready |= _break_cycles(state, waiting, ready)
    return ready


def _take_special(state: State, slots: Ints, devices: Ints, *, first: bool) -> None:
    """Let the special jobs among *slots* hold their targets too: *devices* and rows; see `holdings.take`."""
    table = state.world.table
    special = jobs.special_among(table.ints, slots)
    if len(special):
        take(state, special, devices[state.flags(special)[state.world.target.owner[devices]]], first=first)


def _break_cycles(state: State, waiting: Ints, ready: Bools) -> Bools:
    """Operations that may go out after all because their job stops first; changes their kind."""
    table = state.world.table
    stuck = waiting[~ready].tolist()
    blockers = _blockers(state, stuck)
    flow = _Flow(blockers, {*waiting[ready].tolist(), *state.where(table.issued > 0).tolist()})
    holding = [slot for slot in stuck if table.held[slot] > 0]
    # A job that waits for nobody is in its own way: it moves within a full node.
    broken = [slot for slot in holding if not blockers[slot]]
    # Fewer and fewer are stuck, and in the way of those: whoever need not stop now need not stop later.
    for slot in sorted(holding, key=lambda slot: (table.held[slot] * table.milli[slot], -table.number[slot])):
        if flow.holds_up(slot):
            broken.append(slot)
            flow.move(slot)
    table.op[broken] = OpKind.STOP
    return state.flags(np.array(broken, np.int64))[waiting]


class _Flow:
    """Who is on its way: whoever moves, and whoever waits only for those that are on their way."""

    def __init__(self, blockers: dict[int, set[int]], moving: set[int]) -> None:
        self._waiters: dict[int, list[int]] = {}
        for slot, ahead in blockers.items():
            for blocker in ahead:
                self._waiters.setdefault(blocker, []).append(slot)
        self._ahead = {slot: len(ahead) for slot, ahead in blockers.items()}
        self._on_its_way: set[int] = set()
        for slot in moving.union(slot for slot, ahead in blockers.items() if not ahead):
            self.move(slot)

    def holds_up(self, slot: int) -> bool:
        """Whether the job is stuck, and somebody who is stuck waits for it."""
        stuck = slot not in self._on_its_way
        return stuck and any(waiter not in self._on_its_way for waiter in self._waiters.get(slot, ()))

    def move(self, slot: int) -> None:
        """The job moves, and with it whoever now waits for nobody else."""
        fresh = [slot]
        while fresh:
            one = fresh.pop()
            if one in self._on_its_way:
                continue
            self._on_its_way.add(one)
            for waiter in self._waiters.get(one, ()):
                self._ahead[waiter] -= 1
                if not self._ahead[waiter]:
                    fresh.append(waiter)


def _blockers(state: State, stuck: list[int]) -> dict[int, set[int]]:
    """For each job whose operation cannot go out, the jobs that hold what it needs and are to give up something."""
    world, table = state.world, state.world.table
    target, held = world.target, world.held
    blockers: dict[int, set[int]] = {slot: set() for slot in stuck}
    waits = ((target.owner >= 0) & (held.owner >= 0) & (held.owner != target.owner)).nonzero()[0]
    for taker, holder in zip(target.owner[waits].tolist(), held.owner[waits].tolist(), strict=True):
        if taker in blockers:
            blockers[taker].add(holder)
    cut_up = (target.owner >= 0) & (held.owner == SHARED)
    parts = held.rows[:, held.rows[DEVICE] >= 0]
    parts = parts[:, cut_up[parts[DEVICE]]]
    for taker, holder in zip(target.owner[parts[DEVICE]].tolist(), parts[SLOT].tolist(), strict=True):
        if taker in blockers:
            blockers[taker].add(holder)
    for slot in stuck:
        if not blockers[slot]:
            # Cores, memory or parts of a GPU: anybody on those nodes who is about to leave something.
            nodes = np.unique(added_places(state, slot)[NODE])
            on_nodes = held.owner[np.isin(world.inventory.node_of, nodes)]
            others = set(on_nodes[on_nodes >= 0].tolist()) | set(held.rows[0][np.isin(held.rows[NODE], nodes)].tolist())
            blockers[slot] = {other for other in others if other != slot and table.op[other] != OpKind.NONE}
    return blockers
