"""The rules I1 to I13. Each is a function that returns what breaks it; nothing here raises or repairs.

I2 to I5, I12 and I13 judge what a decision changes: a node that is cordoned, lost or filled by others under a running
job is an event to handle, not a violation. The engine asks `check` before it commits; tests and the simulator ask
`check_state` after each step and let a `History` watch what must never go back.

Where a sum is exceeded, the job without which it would not be is at fault, if there is exactly one such job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np

from levada.core import layout
from levada.core.job import Phase
from levada.core.plan import OpKind
from levada.core.plane import DEVICE, FREE, GPU_MEMORY, INDEX, MILLI, NODE, SHARED, SLOT, Plane
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE, WHOLE, Bools, Ints
from levada.kernels import invariants as kernel
from levada.tables.accounts import UserAccounts, gpus_of
from levada.tables.world import World

#: Reasons for a job to wait; the others are about jobs that run or are over.
_OTHER_REASONS = {Code.RUNS, Code.FINISHED, Code.CANCELLED, Code.FAILED, Code.TIME_LIMIT}
_REASONS_TO_WAIT = sorted(set(Code.numbers()) - _OTHER_REASONS)


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """One breach of one rule."""

    rule: str
    text: str
    #: The job that alone is at fault, or -1.
    slot: int = -1


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What a decision would make of the world: a target plane, and type and count per slot."""

    plane: Plane
    type: Ints
    count: Ints
    #: Slots that it is about; nothing of any other job may change.
    slots: Ints
    #: Per slot: may not be stopped, shrunk or moved now. Empty: as the table of jobs says.
    protected: Bools


# --- what a decision may do: kernels find what is wrong, and here it is put into words ------------------------------


def i1_no_device_beyond_whole(world: World, plane: Plane, before: Plane | None = None) -> list[Violation]:
    """No device is given beyond 100 %, neither its compute nor its memory; whoever came since *before* is at fault."""
    devices = world.inventory.openings.devices
    return _described(world, kernel.devices_within_whole(plane.owner, plane.rows, devices), plane, before)


def i2_new_grants_on_open_devices(world: World, proposal: Proposal) -> list[Violation]:
    """New grants go only to healthy, uncordoned devices that nobody else uses, so sums per type stay in capacity."""
    old, new, openings = world.target, proposal.plane, world.inventory.openings
    moved = (new.owner != old.owner).nonzero()[0]
    found = kernel.grants_on_open_devices(moved, new.owner, new.rows, old.rows, openings.devices, openings.nodes)
    return _described(world, found, new, old)


def i4_places_add_up(world: World, proposal: Proposal) -> list[Violation]:
    """Placement adds up to the allocation, on devices of its type; each worker is whole and on one node."""
    plane, slots, devices = proposal.plane, proposal.slots, world.inventory.openings.devices
    found = kernel.places_add_up(
        plane.devices,
        plane.rows,
        devices,
        world.table.ints,
        slots,
        proposal.type,
        proposal.count,
        plane.devices_of(slots),
    )
    return _described(world, found, plane, None)


def i5_protected_stay(world: World, proposal: Proposal) -> list[Violation]:
    """Jobs that are protected, or that the decision is not about, are not stopped, shrunk or moved by it.

    The protected job is at fault where the decision is about it (it asked for the impossible), otherwise its robber.
    """
    old, new = world.target, proposal.plane
    moved, renamed = ((new.devices[row] != old.devices[row]).nonzero()[0] for row in range(2))
    ints, slots = world.table.ints, proposal.slots
    found = kernel.others_stay(moved, renamed, old.owner, new.rows, old.rows, ints, slots, proposal.protected)
    return _described(world, found, new, old, proposal.slots)


def i12_nodes_within_limits(world: World, plane: Plane) -> list[Violation]:
    """Cores and memory per node are within what is allocatable wherever a proposal uses more than the target does."""
    old = world.target
    found = kernel.nodes_within_limits(plane.nodes, old.nodes, world.inventory.openings.nodes)
    return _described(world, found, plane, old)


def i12_sums_kept(world: World, plane: Plane) -> list[Violation]:
    """What a plane says of the cores and memory in use per node is what its workers add up to."""
    node_of = world.inventory.node_of
    found = kernel.sums_kept(plane.devices, plane.nodes, plane.rows, node_of, world.table.ints)
    return _described(world, found, plane, None)


def bad_sizes(said: Ints, rows: Ints, slots: Ints) -> list[Violation]:
    """I3 for the jobs in *slots* of a decision: *said* has its columns, *rows* the slot of each row."""
    row_of = {slot: row for row, slot in enumerate(rows.tolist()) if slot >= 0}
    return [_bad_size(slot, int(said[1, row_of[slot]]), int(said[2, row_of[slot]])) for slot in slots.tolist()]


def _bad_sizes(slots: Ints, proposal: Proposal) -> list[Violation]:
    return [_bad_size(slot, int(proposal.type[slot]), int(proposal.count[slot])) for slot in slots.tolist()]


def _bad_size(slot: int, kind: int, count: int) -> Violation:
    return Violation(rule="I3", text=f"{count} workers on type {kind} are not allowed", slot=slot)


def i13_queues_within_limits(world: World, proposal: Proposal) -> list[Violation]:
    """A queue's use is within its limit, its children's included, wherever use grew."""
    queues, table, types = world.queues, world.table, world.inventory.types
    if not any(queue.limit for queue in queues.values):
        return []
    asked = _asked(world, proposal)
    used, before = (queues.usage(table.queue[active], kind, units, len(types)) for active, kind, units in asked)
    room = np.maximum(queues.limits(types), before)
    found = []
    for queue, kind in zip(*(used > room).nonzero(), strict=True):
        under = np.array([queue in queues.lineage(number) for number in range(len(queues.values))])
        shares = []
        for active, kinds, units in asked:
            mine = under[table.queue[active]] & (kinds == kind)
            shares.append((active[mine], units[mine]))
        slot = _culprit(*_growth(*shares), int(used[queue, kind] - room[queue, kind]))
        text = f"queue {queues.names[int(queue)]} uses {used[queue, kind]}/1000 of {types[int(kind)]}"
        found.append(Violation(rule="I13", text=text, slot=slot))
    return found


def i13_users_within_limits(world: World, proposal: Proposal) -> list[Violation]:
    """What one user has in a queue that limits its users is within that limit, wherever it grew."""
    queues, types = world.queues, world.inventory.types
    if not queues.limiting_users:
        return []
    accounts, asked = UserAccounts(world.table, queues, types), _asked(world, proposal)
    used, before = (accounts.usage(*each) for each in asked)
    room = np.maximum(accounts.limit, before)
    found = []
    gpus, gpus_before = gpus_of(used), gpus_of(before)
    beyond = [
        (account, np.arange(len(types)) == kind, int(used[account, kind] - room[account, kind]), types[int(kind)])
        for account, kind in zip(*(used > room).nonzero(), strict=True)
    ]
    together = np.maximum(accounts.total, gpus_before)
    beyond += [
        (account, np.arange(len(types)) != CPU_TYPE, int(gpus[account] - together[account]), "all GPUs")
        for account in (gpus > together).nonzero()[0]
    ]
    for account, of, excess, what in beyond:
        shares = []
        for active, kinds, units in asked:
            mine = (accounts.line[active] == account).any(axis=1) & of[kinds]
            shares.append((active[mine], units[mine]))
        slot = _culprit(*_growth(*shares), excess)
        queue, user = accounts.owner[account]
        who = f"user {world.entities[user]!r} has {used[account][of].sum()}/1000 of {what}"
        found.append(Violation(rule="I13", text=f"{who} in queue {queues.names[queue]}", slot=slot))
    return found


def _asked(world: World, proposal: Proposal) -> list[tuple[Ints, Ints, Ints]]:
    """Slots, types and 1/1000ths of all that have anything: in the proposal, and at present."""
    table, slots, unit = world.table, world.table.order, world.table.units()
    return [
        (active := slots[count[slots] > 0], kind[active], count[active] * unit[active])
        for kind, count in ((proposal.type, proposal.count), (table.type, table.count))
    ]


def check(world: World, proposal: Proposal) -> list[Violation]:
    """All that is wrong with a proposal (I1 to I5, I12, I13)."""
    old, new, openings = world.target, proposal.plane, world.inventory.openings
    findings = kernel.check(
        new.devices,
        new.nodes,
        new.rows,
        old.devices,
        old.nodes,
        old.rows,
        openings.devices,
        openings.nodes,
        world.table.ints,
        world.table.preference,
        proposal.slots,
        proposal.type,
        proposal.count,
        proposal.protected,
    )
    if findings.shape[1] and findings[0, 0] == kernel.BAD_SIZE:
        return _bad_sizes(findings[1], proposal)
    found = _described(world, findings, new, old, proposal.slots) if findings.shape[1] else []
    if not world.queues.unlimited:
        found += i13_queues_within_limits(world, proposal) + i13_users_within_limits(world, proposal)
    return found


# --- what holds at every moment -------------------------------------------------------------------------------------


def i6_only_free_devices(world: World, adds: Ints, takers: Ints, rows: Ints | None = None) -> list[Violation]:
    """No operation is issued for a device that another is seen to use.

    *adds* are whole devices and *takers* their slots; *rows* are the other places that operations add. To be asked
    before the operations count as held.
    """
    held = world.held
    user = held.owner[adds]
    taken = (user != FREE) & (user != takers)
    found = [
        Violation(rule="I6", text=f"device {adds[i]} is not free yet", slot=int(takers[i])) for i in taken.nonzero()[0]
    ]
    if rows is None:
        return found
    after = held.copy()
    after.add_rows(rows)
    parts = rows[:, rows[DEVICE] >= 0]
    full = (after.shared_milli() > WHOLE) | (after.shared_gpu_memory() > world.inventory.gpu_memory)
    full |= held.owner >= 0
    return found + [
        Violation(rule="I6", text=f"device {row[DEVICE]} has too little free yet", slot=int(row[SLOT]))
        for row in parts[:, full[parts[DEVICE]]].T
    ]


def i7_generations_grow(world: World, number: Ints, generation: Ints) -> list[Violation]:
    """No job has a smaller generation than it had."""
    table = world.table
    slots = table.find(number)
    fell = ((slots >= 0) & (table.generation[slots] < generation)).nonzero()[0]
    return [
        Violation(
            rule="I7",
            text=f"its generation fell from {generation[row]} to {table.generation[slots[row]]}",
            slot=int(slots[row]),
        )
        for row in fell
    ]


def i8_terminal_is_final(world: World, ended: Sequence[int] | Ints) -> list[Violation]:
    """No job that is over (by number) is active again or has ended twice, and nothing is held for one that is over."""
    numbers, times = np.unique(np.asarray(ended, np.int64), return_counts=True)
    slots = world.table.find(numbers)
    found = [
        Violation(rule="I8", text=f"job {numbers[row]} was over", slot=int(slots[row]))
        for row in ((slots >= 0) | (times > 1)).nonzero()[0]
    ]
    idle = ~_flags(world, world.table.order)
    for plane in (world.target, world.held):
        owner, sharer = plane.owner, plane.rows[SLOT]
        left = np.concatenate([owner[(owner >= 0) & idle[owner]], sharer[idle[sharer]]])
        found += [
            Violation(rule="I8", text="a job that is over has places", slot=int(slot)) for slot in np.unique(left)
        ]
    return found


def i9_waiting_has_reason(world: World) -> list[Violation]:
    """Every waiting job has a reason, and one to wait for."""
    table = world.table
    slots = table.order
    waits = slots[(table.phase[slots] == Phase.PENDING) | (table.phase[slots] == Phase.SUSPENDED)]
    bare = ~np.isin(table.reason[waits], _REASONS_TO_WAIT)
    return [Violation(rule="I9", text="it waits without a reason", slot=int(slot)) for slot in waits[bare]]


def i10_same_output(first: bytes, second: bytes) -> list[Violation]:
    """Same input, same output, byte for byte."""
    return [] if first == second else [Violation(rule="I10", text="two runs differ")]


def i11_conservation(world: World, submitted: int, ended: int) -> list[Violation]:
    """Every job submitted is in exactly one of the nine phases, and known by its id while it lives."""
    table = world.table
    slots = table.order
    phase, number = table.phase[slots], table.number[slots]
    astray = (phase < Phase.PENDING) | (phase > Phase.SUSPENDED) | (number < 0) | (table.find(number) != slots)
    found = [Violation(rule="I11", text="it is in no phase of a living job", slot=int(slot)) for slot in slots[astray]]
    living = len(np.unique(number))
    if not living == len(slots) == len(world.ids) == len(world.numbers) or living + ended != submitted:
        text = f"{submitted} submitted, but {living} live, {len(world.ids)} have an id and {ended} ended"
        found.append(Violation(rule="I11", text=text))
    return found


def check_state(world: World, *, submitted: int, ended: int) -> list[Violation]:
    """All that is wrong with a state between events: I1, I4, I8, I9, I11, and the sums of I12, on both planes.

    What a job holds is judged while no operation on it is under way or has gone unanswered: until then it may hold the
    old places and the new ones.
    """
    table = world.table
    nobody = np.zeros(table.capacity, bool)
    slots = table.order
    phase, op = table.phase[slots], table.op[slots]
    quiet = (phase == Phase.PENDING) | (phase == Phase.RUNNING) | (phase == Phase.SUSPENDED)
    settled = slots[quiet & (table.issued[slots] == 0) & (op != OpKind.STOP)]
    target = Proposal(plane=world.target, type=table.type, count=table.count, slots=slots, protected=nobody)
    held = Proposal(plane=world.held, type=table.held_type, count=table.held, slots=settled, protected=nobody)
    found = i8_terminal_is_final(world, ()) + i9_waiting_has_reason(world) + i11_conservation(world, submitted, ended)
    for state in (target, held):
        found += i1_no_device_beyond_whole(world, state.plane)
        found += i4_places_add_up(world, state)
        found += i12_sums_kept(world, state.plane)
    return found


class History:
    """Watches what must not go back from one event to the next: generations (I7) and ends (I8)."""

    def __init__(self) -> None:
        self._number: Ints = np.zeros(0, np.int64)
        self._generation: Ints = np.zeros(0, np.int64)
        self._over: set[int] = set()

    def see(self, world: World, ended: Sequence[int] | Ints = ()) -> list[Violation]:
        """What went back since the last call; *ended* are the numbers of the jobs that ended meanwhile."""
        over = [int(number) for number in ended]
        number = world.table.number[world.table.order]
        came = np.setdiff1d(number, self._number).tolist()
        again = [number for number in [*over, *came] if number in self._over]
        found = i7_generations_grow(world, self._number, self._generation) + i8_terminal_is_final(world, over + again)
        self._over.update(over)
        self._number, self._generation = number, world.table.generation[world.table.order]
        return found


# --- who is at fault ------------------------------------------------------------------------------------------------


def _described(
    world: World, findings: Ints, plane: Plane, before: Plane | None, spoken: Ints | None = None
) -> list[Violation]:
    """Findings of `kernels.invariants` about *plane* in words, with the job at fault since *before*."""
    found: list[Violation] = []
    robbed: set[tuple[int, int]] = set()
    for rule, subject in findings.T.tolist():
        if rule in (kernel.TAKEN_DEVICE, kernel.TAKEN_ROW) and before is not None:
            if rule == kernel.TAKEN_DEVICE:
                robbed.add((int(before.owner[subject]), _robber(before, plane, subject)))
            else:
                robbed.add((int(before.rows[SLOT, subject]), -1))
        else:
            if robbed:
                found += _robberies(world, robbed, spoken)
                robbed = set()
            found.append(_DESCRIBE[rule](world, subject, plane, before))
    return found + _robberies(world, robbed, spoken)


def _robberies(world: World, robbed: set[tuple[int, int]], spoken: Ints | None) -> list[Violation]:
    marks = _flags(world, spoken if spoken is not None else np.zeros(0, np.int64))
    return [
        Violation(
            rule="I5",
            text=f"what job {world.table.number[victim]} has may not be touched now",
            slot=victim if marks[victim] else robber,
        )
        for victim, robber in sorted(robbed)
    ]


def _whole_and_parts(world: World, device: int, plane: Plane, before: Plane | None) -> Violation:
    parts = _parts(plane)
    owner, sharers = int(plane.owner[device]), np.unique(parts[SLOT][parts[DEVICE] == device])
    came = before is not None and owner >= 0 and before.owner[device] != owner
    slot = owner if came else _alone(sharers if owner < 0 or before is not None else np.append(sharers, owner))
    return Violation(rule="I1", text=f"device {device} is given both whole and in parts", slot=slot)


def _beyond(column: int, world: World, device: int, plane: Plane, before: Plane | None) -> Violation:
    used = int(plane.rows[column][plane.rows[DEVICE] == device].sum())
    room, unit = (WHOLE, "/1000") if column == MILLI else (int(world.inventory.gpu_memory[device]), " MiB")
    slot = _culprit(*_grown_parts(plane, before, device, column), used - room)
    return Violation(rule="I1", text=f"device {device}: {used}{unit} given", slot=slot)


def _closed_device(_world: World, device: int, plane: Plane, _before: Plane | None) -> Violation:
    return Violation(rule="I2", text=f"device {device} may not be given", slot=int(plane.owner[device]))


def _closed_row(_world: World, row: int, plane: Plane, _before: Plane | None) -> Violation:
    place = plane.rows[:, row]
    return Violation(rule="I2", text=f"{_place(place)} may not be given", slot=int(place[SLOT]))


def _left_by_others(column: int, world: World, device: int, plane: Plane, before: Plane | None) -> Violation:
    used = int(plane.rows[column][plane.rows[DEVICE] == device].sum())
    row = layout.MILLI_LEFT if column == MILLI else layout.GPU_MEMORY_LEFT
    left = int(world.inventory.openings.devices[row, device])
    slot = _culprit(*_grown_parts(plane, before, device, column), used - left)
    return Violation(rule="I2", text=f"others leave less of device {device}", slot=slot)


def _bad_places(_world: World, slot: int, _plane: Plane, _before: Plane | None) -> Violation:
    return Violation(rule="I4", text="its places do not add up to its workers", slot=slot)


def _node_limit(what: str, world: World, node: int, plane: Plane, before: Plane | None) -> Violation:
    table, row = world.table, layout.USED_CPU if what == "cpu" else layout.USED_MEMORY
    free = int(world.inventory.openings.nodes[layout.CPU_FREE if what == "cpu" else layout.MEMORY_FREE, node])
    worker, server = (table.cpu, table.server_cpu) if what == "cpu" else (table.memory, table.server_memory)
    planes = (plane, before) if before is not None else (plane, plane)
    grown = _growth(*(_node_shares(world, each, node, worker, server) for each in planes))
    use, room = int(plane.nodes[row, node]), max(free, int(planes[1].nodes[row, node]))
    slot = _culprit(*grown, use - room)
    return Violation(rule="I12", text=f"{what} of node {node}: {use} of {free}", slot=slot)


def _node_sum(what: str, world: World, node: int, plane: Plane, _before: Plane | None) -> Violation:
    row = layout.USED_CPU if what == "cpu" else layout.USED_MEMORY
    kept, use = int(plane.nodes[row, node]), int(world.use_of(plane)[row, node])
    return Violation(rule="I12", text=f"{what} of node {node}: {kept} kept, {use} used")


_DESCRIBE: dict[int, Callable[[World, int, Plane, Plane | None], Violation]] = {
    kernel.WHOLE_AND_PARTS: _whole_and_parts,
    kernel.BEYOND_WHOLE: partial(_beyond, MILLI),
    kernel.BEYOND_MEMORY: partial(_beyond, GPU_MEMORY),
    kernel.CLOSED_DEVICE: _closed_device,
    kernel.CLOSED_ROW: _closed_row,
    kernel.LEFT_BY_OTHERS: partial(_left_by_others, MILLI),
    kernel.MEMORY_LEFT_BY_OTHERS: partial(_left_by_others, GPU_MEMORY),
    kernel.BAD_PLACES: _bad_places,
    kernel.NODE_CPU: partial(_node_limit, "cpu"),
    kernel.NODE_MEMORY: partial(_node_limit, "memory"),
    kernel.CPU_SUM: partial(_node_sum, "cpu"),
    kernel.MEMORY_SUM: partial(_node_sum, "memory"),
}


def _culprit(slots: Ints, growth: Ints, surplus: int) -> int:
    """The one job without whose growth there would be no surplus; -1 where there is none, or more than one."""
    return _alone(slots[growth >= surplus])


def _alone(slots: Ints) -> int:
    """The job, if these are all the same one; otherwise -1."""
    return int(slots[0]) if len(slots) and (slots == slots[0]).all() else -1


def _growth(now: tuple[Ints, Ints], before: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Jobs, and by how much the sums of their shares (slot, amount) differ."""
    slots, which = np.unique(np.concatenate([now[0], before[0]]), return_inverse=True)
    growth = np.zeros(len(slots), np.int64)
    np.add.at(growth, which, np.concatenate([now[1], -before[1]]))
    return slots, growth


def _grown_parts(plane: Plane, before: Plane | None, device: int, column: int) -> tuple[Ints, Ints]:
    """Jobs with parts of a device, and how much more of it they have than *before*."""

    def shares(of: Plane | None) -> tuple[Ints, Ints]:
        rows = of.rows[:, of.rows[DEVICE] == device] if of is not None else plane.rows[:, :0]
        return rows[SLOT], rows[column]

    return _growth(shares(plane), shares(before))


def _node_shares(world: World, plane: Plane, node: int, worker: Ints, server: Ints) -> tuple[Ints, Ints]:
    """Jobs on a node and what each of their workers takes of it, by *worker* and *server* columns."""
    here = ((plane.owner >= 0) & (world.inventory.node_of == node)).nonzero()[0]
    slots = np.unique(np.stack([plane.owner[here], plane.index[here]]), axis=1)[0].astype(np.int64)
    rows = plane.rows[:, plane.rows[NODE] == node]
    amounts = np.where(rows[INDEX] >= 0, worker[rows[SLOT]], server[rows[SLOT]])
    return np.concatenate([slots, rows[SLOT]]), np.concatenate([worker[slots], amounts])


def _robber(old: Plane, new: Plane, device: int) -> int:
    """The job that alone has a device, or parts of it, which was another's; -1 where there is none."""
    owner = int(new.owner[device])
    if owner == SHARED:
        owner = _alone(new.rows[SLOT][new.rows[DEVICE] == device])
    return owner if owner >= 0 and owner != old.owner[device] else -1


# --- small words ----------------------------------------------------------------------------------------------------


def _flags(world: World, slots: Ints) -> Bools:
    """True at these slots."""
    marks = np.zeros(world.table.capacity, bool)
    marks[slots] = True
    return marks


def _parts(plane: Plane) -> Ints:
    """Rows that are parts of a device."""
    return plane.rows[:, plane.rows[DEVICE] >= 0]


def _place(row: Ints) -> str:
    return f"device {row[DEVICE]}" if row[DEVICE] >= 0 else f"node {row[NODE]}"
