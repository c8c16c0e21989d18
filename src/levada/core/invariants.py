"""The rules I1 to I13. Each is a function that returns what breaks it; nothing here raises or repairs.

I2 to I5, I12 and I13 judge what a decision changes: a node that is cordoned, lost or filled by others under a running
job is an event to handle, not a violation. The engine asks `check` before it commits; tests and the simulator ask
`check_state` after each step and let a `History` watch what must never go back.

Where a sum is exceeded, the job without which it would not be is at fault, if there is exactly one such job.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from levada.core.accounts import UserAccounts, gpus_of
from levada.core.inventory import UNLIMITED
from levada.core.job import Phase
from levada.core.layout import NOT_ALLOWED
from levada.core.plan import OpKind
from levada.core.plane import DEVICE, FREE, GPU_MEMORY, INDEX, MILLI, NODE, SHARED, SLOT, Plane
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE, PACKED, WHOLE, Bools, Ints
from levada.core.world import World
from levada.kernels import assignment

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
    #: Per slot: may not be stopped, shrunk or moved now.
    protected: Bools


# --- what a decision may do -----------------------------------------------------------------------------------------


def i1_no_device_beyond_whole(world: World, plane: Plane, before: Plane | None = None) -> list[Violation]:
    """No device is given beyond 100 %, neither its compute nor its memory; whoever came since *before* is at fault."""
    parts = _parts(plane)
    cut = np.zeros(len(plane.owner), bool)
    cut[parts[DEVICE]] = True
    found = []
    for device in ((plane.owner == SHARED) != cut).nonzero()[0]:
        owner, sharers = int(plane.owner[device]), np.unique(parts[SLOT][parts[DEVICE] == device])
        came = before is not None and owner >= 0 and before.owner[device] != owner
        slot = owner if came else _alone(sharers if owner < 0 or before is not None else np.append(sharers, owner))
        found.append(Violation(rule="I1", text=f"device {device} is given both whole and in parts", slot=slot))
    if parts.shape[1]:
        milli, memory = plane.shared_milli(), plane.shared_gpu_memory()
        for used, room, column, unit in (
            (milli, np.full_like(milli, WHOLE), MILLI, "/1000"),
            (memory, world.inventory.gpu_memory, GPU_MEMORY, " MiB"),
        ):
            for device in (used > room).nonzero()[0]:
                slot = _culprit(*_grown_parts(plane, before, int(device), column), int(used[device] - room[device]))
                found.append(Violation(rule="I1", text=f"device {device}: {used[device]}{unit} given", slot=slot))
    return found


def i2_new_grants_on_open_devices(world: World, proposal: Proposal) -> list[Violation]:
    """New grants go only to healthy, uncordoned devices that nobody else uses, so sums per type stay in capacity."""
    inventory, old, new = world.inventory, world.target, proposal.plane
    room = inventory.free_milli()
    fresh = (new.owner >= 0) & (new.owner != old.owner)
    found = [
        Violation(rule="I2", text=f"device {device} may not be given", slot=int(new.owner[device]))
        for device in (fresh & (room < WHOLE)).nonzero()[0]
    ]
    if not new.rows.shape[1]:
        return found
    rows = new.rows[:, assignment.fresh_rows(old.rows, new.rows)]
    on_device = rows[DEVICE] >= 0
    closed = np.where(on_device, ~inventory.usable[rows[DEVICE]] if on_device.any() else False, False)
    closed |= ~inventory.usable_nodes[rows[NODE]]
    found += [
        Violation(rule="I2", text=f"{_place(row)} may not be given", slot=int(row[SLOT])) for row in rows[:, closed].T
    ]
    touched = np.unique(rows[DEVICE][on_device & ~closed])
    memory_room = inventory.gpu_memory - inventory.foreign_gpu_memory - inventory.reserved_gpu_memory
    for used, left, whole, column in (
        (new.shared_milli(), room, WHOLE, MILLI),
        (new.shared_gpu_memory(), np.maximum(memory_room, 0), inventory.gpu_memory, GPU_MEMORY),
    ):
        # Where nobody else is, the limit is the device itself, and I1 speaks of that.
        for device in touched[((used > left) & (left < whole))[touched]]:
            slot = _culprit(*_grown_parts(new, old, int(device), column), int(used[device] - left[device]))
            found.append(Violation(rule="I2", text=f"others leave less of device {device}", slot=slot))
    return found


def i3_sizes_in_range(world: World, proposal: Proposal) -> list[Violation]:
    """A new grant is nothing, or within [min, max] workers in whole steps, on a type the job allows."""
    table, slots = world.table, proposal.slots
    count, kind = proposal.count[slots], proposal.type[slots]
    changed = (count != table.count[slots]) | (kind != table.type[slots])
    least, most, step = table.min[slots], table.max[slots], table.step[slots]
    off = (count < least) | (count > most) | ((count - least) % np.maximum(step, 1) != 0)
    known = (kind >= 0) & (kind < len(world.inventory.types))
    allowed = known & (table.preference[np.where(known, kind, 0), slots] != NOT_ALLOWED)
    bad = np.where(count == 0, kind != -1, changed & (off | ~allowed)) | (count < 0)
    return [
        Violation(rule="I3", text=f"{count[row]} workers on type {kind[row]} are not allowed", slot=int(slots[row]))
        for row in bad.nonzero()[0]
    ]


def i4_places_add_up(world: World, proposal: Proposal) -> list[Violation]:
    """Placement adds up to the allocation, on devices of its type; each worker is whole and on one node."""
    table, inventory, plane = world.table, world.inventory, proposal.plane
    judged = _flags(world, proposal.slots)
    kind, count = proposal.type, proposal.count
    whole = np.where(table.milli % WHOLE == 0, table.milli // WHOLE, 0)
    rows = plane.rows[:, judged[plane.rows[SLOT]]]
    slot, server = rows[SLOT], rows[INDEX] < 0
    # A job that asks for whole GPUs has a row for each of them while it is packed, and no device for itself.
    packed = (whole > 0) & (np.bincount(slot[~server], minlength=table.capacity) > 0)
    alone = np.where(packed, 0, count)
    faults = assignment.worker_faults(
        plane.owner, plane.index, inventory.node_of, inventory.type_of, judged, kind, alone, whole
    )
    faults |= judged & ((count > 0) != (kind >= 0))
    for group, expected in (
        (~server, np.where(packed, count * whole, np.where(whole > 0, 0, count))),
        (server, np.where(count > 0, table.servers, 0)),
    ):
        faults |= judged & (np.bincount(slot[group], minlength=table.capacity) != expected)
    if rows.shape[1]:
        faults[slot[_misplaced(world, rows, kind)]] = True
        faults[_split_workers(rows, np.where(packed, whole, 1))] = True
    return [
        Violation(rule="I4", text="its places do not add up to its workers", slot=int(slot))
        for slot in faults.nonzero()[0]
    ]


def _split_workers(rows: Ints, parts: Ints) -> Ints:
    """Slots of jobs with a worker that is on two nodes, or not in as many *parts* (by slot) as it should be."""
    order = np.lexsort((rows[NODE], rows[INDEX], rows[SLOT]))
    slot, index, node = rows[SLOT][order], rows[INDEX][order], rows[NODE][order]
    first = np.ones(len(order), bool)
    first[1:] = (slot[1:] != slot[:-1]) | (index[1:] != index[:-1])
    begins = first.nonzero()[0]
    length = np.diff(begins, append=len(order))
    wrong = length != np.where(index[begins] >= 0, parts[slot[begins]], 1)
    wrong |= node[begins] != node[begins + length - 1]
    return slot[begins[wrong]]


def i5_protected_stay(world: World, proposal: Proposal) -> list[Violation]:
    """Jobs that are protected, or that the decision is not about, are not stopped, shrunk or moved by it.

    The protected job is at fault where the decision is about it (it asked for the impossible), otherwise its robber.
    """
    old, new = world.target, proposal.plane
    spoken = _flags(world, proposal.slots)
    stays = proposal.protected | ~spoken
    touched = (new.owner != old.owner) | (new.index != old.index)
    lost = (touched & (old.owner >= 0) & stays[old.owner]).nonzero()[0]
    pairs = {(int(old.owner[device]), _robber(old, new, int(device))) for device in lost}
    gone = old.rows[:, assignment.fresh_rows(new.rows, old.rows)]
    pairs |= {(int(slot), -1) for slot in gone[SLOT][stays[gone[SLOT]]]}
    found = []
    for victim, robber in sorted(pairs):
        text = f"what job {world.table.number[victim]} has may not be touched now"
        found.append(Violation(rule="I5", text=text, slot=victim if spoken[victim] else robber))
    return found


def i12_nodes_within_limits(world: World, plane: Plane) -> list[Violation]:
    """Cores and memory per node are within what is allocatable wherever a proposal uses more than the target does."""
    table, inventory, old = world.table, world.inventory, world.target
    found = []
    for what, use, before, free, worker, server in (
        ("cpu", plane.cpu, old.cpu, inventory.free_cpu(), table.cpu, table.server_cpu),
        ("memory", plane.memory, old.memory, inventory.free_memory(), table.memory, table.server_memory),
    ):
        # Nodes that are closed are I2's affair.
        room = np.maximum(np.where(inventory.usable_nodes, free, UNLIMITED), before)
        for node in (use > room).nonzero()[0]:
            grown = _growth(
                *(_node_shares(world, each, int(node), worker, server) for each in (plane, old)),
            )
            slot = _culprit(*grown, int(use[node] - room[node]))
            found.append(Violation(rule="I12", text=f"{what} of node {node}: {use[node]} of {free[node]}", slot=slot))
    return found


def i12_sums_kept(world: World, plane: Plane) -> list[Violation]:
    """What a plane says of the cores and memory in use per node is what its workers add up to."""
    cpu, memory = world.use_of(plane)
    return [
        Violation(rule="I12", text=f"{what} of node {node}: {kept[node]} kept, {use[node]} used")
        for what, use, kept in (("cpu", cpu, plane.cpu), ("memory", memory, plane.memory))
        for node in (use != kept).nonzero()[0]
    ]


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
    sizes = i3_sizes_in_range(world, proposal)
    if sizes:
        return sizes  # the other rules look things up by type
    found = (
        i1_no_device_beyond_whole(world, proposal.plane, world.target)
        + i2_new_grants_on_open_devices(world, proposal)
        + i4_places_add_up(world, proposal)
        + i5_protected_stay(world, proposal)
        + i12_nodes_within_limits(world, proposal.plane)
        + i13_queues_within_limits(world, proposal)
        + i13_users_within_limits(world, proposal)
    )
    # Places that are no good count for nothing, or twice: only sound ones have sums to keep.
    return found or i12_sums_kept(world, proposal.plane)


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


def _misplaced(world: World, rows: Ints, gpu_type: Ints) -> Bools:
    """Rows that are not as the job's workers and parameter servers are, or on a device of another node or type."""
    table, inventory = world.table, world.inventory
    slot, device = rows[SLOT], rows[DEVICE]
    server = rows[INDEX] < 0
    milli = np.where(server, 0, table.milli[slot])
    milli = np.where(milli >= WHOLE, PACKED, milli)
    wrong = (rows[MILLI] != milli) | ((device >= 0) != (milli > 0)) | (rows[INDEX] < -table.servers[slot])
    wrong |= rows[GPU_MEMORY] != np.where((table.milli[slot] % WHOLE > 0) & ~server, table.gpu_memory[slot], 0)
    part = (device >= 0).nonzero()[0]
    at = device[part]
    wrong[part] |= (inventory.node_of[at] != rows[NODE][part]) | (inventory.type_of[at] != gpu_type[slot[part]])
    return wrong


def _place(row: Ints) -> str:
    return f"device {row[DEVICE]}" if row[DEVICE] >= 0 else f"node {row[NODE]}"
