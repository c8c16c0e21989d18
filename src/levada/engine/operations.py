"""From held to target: which operation each job needs, and when it may go out.

An operation goes out when all it adds is seen to be free. So release comes before acquire without a barrier, and one
slow checkpoint holds up only those who wait for its devices. A cycle of waits is broken at its cheapest member, which
stops and starts again.
"""

from __future__ import annotations

import numpy as np

from levada.core.commands import Apply
from levada.core.job import Phase
from levada.core.plan import OpKind, Plan
from levada.core.plane import DEVICE, NODE, SHARED, SLOT
from levada.core.reasons import Code
from levada.core.types import Bools, Ints
from levada.engine import steps
from levada.engine.holdings import added_places, differing, take
from levada.engine.limits import limited, within_limits
from levada.engine.state import State, tells_why
from levada.kernels import assignment


def plan_operations(state: State, slots: Ints) -> None:
    """Notes for each of these jobs the operation that leads from what it holds to its target."""
    table = state.world.table
    slots = slots[table.issued[slots] == 0]
    if not len(slots):
        return
    has, gets = table.held[slots] > 0, table.count[slots] > 0
    if not (has.any() or gets.any()):
        table.op[slots] = OpKind.NONE
        return
    phase = table.phase[slots]
    # An operation that nobody has confirmed must be asked for again, though the planes agree.
    starts = ~has | (phase == Phase.STARTING)
    resizes = gets & (phase == Phase.RESIZING)
    stays = (has & gets).nonzero()[0]
    if len(stays):
        resizes[stays] |= differing(state, slots[stays])
    op = np.where(resizes, OpKind.RESIZE, OpKind.NONE)
    op[gets & starts] = OpKind.START
    op[has & (~gets | (phase == Phase.STOPPING))] = OpKind.STOP
    table.op[slots] = op
    if op.any():
        state.may_issue = state.may_cycle = True


def issue(state: State) -> None:
    """Sends out every operation that may go; breaks cycles of waits."""
    if steps.issue(state):
        return
    table = state.world.table
    waiting = state.where((table.op != OpKind.NONE) & (table.issued == 0) & (table.retry_at <= state.now))
    if len(waiting):
        _issue(state, waiting)
    state.may_cycle = False
    state.unsent = bool(len(state.where((table.op != OpKind.NONE) & (table.issued == 0))))


def _issue(state: State, waiting: Ints) -> None:
    table = state.world.table
    missing = assignment.blocked(state.world.target.owner, state.world.held.owner, table.capacity)
    ready = (table.op[waiting] == OpKind.STOP) | (missing[waiting] == 0)
    if limited(state, waiting):
        asks = (ready & (table.op[waiting] != OpKind.STOP)).nonzero()[0]
        ready[asks] = within_limits(state, waiting[asks])
    if not ready.all():
        # Where nothing moves at all, whoever is stuck is stuck for good.
        if state.may_cycle or not (ready.any() or (table.issued[table.order] > 0).any()):
            ready |= _break_cycles(state, waiting, ready)
        late = waiting[~ready & (table.phase[waiting] == Phase.PENDING)]
        state.say(late, Code.WAITS_FOR_DEVICES, missing[late])
    if ready.any():
        _send(state, waiting[ready])


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


def _send(state: State, slots: Ints) -> None:
    """Issues the operations of these jobs: one more generation each, and what they add is theirs from now on."""
    table = state.world.table
    op = table.op[slots]
    stops = op == OpKind.STOP
    state.account(slots)
    table.generation[slots] += 1
    table.issued[slots] = 1
    table.issued_at[slots] = state.now
    table.op_deadline[slots] = state.now + state.options.op_timeout_s
    state.alarm(state.now + state.options.op_timeout_s)
    plan = _plan(state, slots, op)
    # One that takes a job elsewhere with as many workers is a move, not a resize.
    resized = slots[(op == OpKind.RESIZE) & (table.count[slots] != table.held[slots])]
    table.resizes[resized] += 1
    table.moves[slots[plan.moved()]] += 1
    starts = op == OpKind.START
    table.phase[slots] = np.where(starts, Phase.STARTING, np.where(stops, Phase.STOPPING, Phase.RESIZING))
    state.say(slots[starts], Code.STARTING)
    for in_place, code in ((True, Code.RESIZING), (False, Code.RESTARTING_RESIZED)):
        chosen = slots[(op == OpKind.RESIZE) & ((table.resizes_in_place[slots] > 0) == in_place)]
        state.say(chosen, code, table.count[chosen])
    state.say(slots[stops & ~tells_why(table.reason[slots])], Code.STOPPING)
    take(state, slots[~stops], plan.add_device)
    table.changed[slots] = state.revision
    state.commands.append(Apply(plan=plan))


def _plan(state: State, slots: Ints, op: Ints) -> Plan:
    world, table = state.world, state.world.table
    stops = op == OpKind.STOP
    adds, drops = assignment.changes(world.target.owner, world.held.owner, state.flags(slots[~stops]))
    drops = np.concatenate([drops, world.held.devices_of(slots[stops])])
    row_of = np.full(table.capacity, -1, np.int64)
    row_of[slots] = np.arange(len(slots))
    return Plan(
        number=table.number[slots],
        kind=op.copy(),
        generation=table.generation[slots],
        type=np.where(stops, -1, table.type[slots]),
        count=np.where(stops, 0, table.count[slots]),
        add_device=adds,
        add_row=row_of[world.target.owner[adds]],
        drop_device=drops,
        drop_row=row_of[world.held.owner[drops]],
    )
