"""The invariants I1 to I14, one function each.

They return violations and never raise or repair.

I2 to I5 and I12 to I14 apply to changes by a decision: a node that is cordoned, lost or filled with foreign pods under
a running job is an event to handle, not a violation. The engine calls `check` before a commit; tests and the simulator
call `check_state` after each step, and use a `History` for invariants across events.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from levada.core.assignment import DEVICE, FREE, SLOT, Assignment
from levada.core.job import Phase
from levada.core.plan import OpKind
from levada.core.reasons import Code
from levada.core.types import CPU_TYPE, WHOLE, Bools, Ints
from levada.kernels import invariants as kernel
from levada.tables.cluster_state import ClusterState
from levada.tables.user_quota import UserQuotas, gpus_of
from levada.tables.violations import Violation, culprit, describe, flags, growth

#: Reasons of running and ended jobs; all others are reasons to wait.
_OTHER_REASONS = {Code.RUNS, Code.FINISHED, Code.CANCELLED, Code.FAILED, Code.TIME_LIMIT}
_REASONS_TO_WAIT = sorted(set(Code.numbers()) - _OTHER_REASONS)


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a decision: a target assignment, and GPU type and count per slot."""

    plane: Assignment
    type: Ints
    count: Ints
    #: Slots of the jobs in the decision; no other job may change.
    slots: Ints
    #: Per slot: must not be stopped, shrunk or moved. Empty: as in the job table.
    protected: Bools


# --- invariants of decisions: kernels find violations, this module describes them -----------------------------------


def i1_no_device_beyond_whole(
    world: ClusterState, plane: Assignment, before: Assignment | None = None
) -> list[Violation]:
    """No device is assigned beyond 100 % of its compute or memory; jobs that came since *before* are at fault."""
    devices = world.inventory.allocatable.devices
    return describe(world, kernel.devices_within_whole(plane.owner, plane.rows, devices), plane, before)


def i2_new_grants_on_open_devices(world: ClusterState, proposal: Proposal) -> list[Violation]:
    """New grants use only healthy, uncordoned devices without foreign use, so sums per type stay in capacity."""
    old, new, allocatable = world.target, proposal.plane, world.inventory.allocatable
    moved = (new.owner != old.owner).nonzero()[0]
    findings = kernel.grants_on_open_devices(
        moved, new.owner, new.rows, old.rows, allocatable.devices, allocatable.nodes
    )
    return describe(world, findings, new, old)


def i4_places_add_up(world: ClusterState, proposal: Proposal) -> list[Violation]:
    """Placement adds up to the allocation, on devices of its type; each worker is whole and on one node."""
    plane, slots, devices = proposal.plane, proposal.slots, world.inventory.allocatable.devices
    findings = kernel.places_add_up(
        plane.devices,
        plane.rows,
        devices,
        world.table.ints,
        slots,
        proposal.type,
        proposal.count,
        plane.devices_of(slots),
    )
    return describe(world, findings, plane, None)


def i5_protected_stay(world: ClusterState, proposal: Proposal) -> list[Violation]:
    """Protected jobs, and jobs outside the decision, are not stopped, shrunk or moved.

    A protected job in the decision is itself at fault, otherwise the job that took its devices.
    """
    old, new = world.target, proposal.plane
    moved, renamed = ((new.devices[row] != old.devices[row]).nonzero()[0] for row in range(2))
    ints, slots = world.table.ints, proposal.slots
    findings = kernel.others_stay(moved, renamed, old.owner, new.rows, old.rows, ints, slots, proposal.protected)
    return describe(world, findings, new, old, proposal.slots)


def i12_nodes_within_limits(world: ClusterState, plane: Assignment) -> list[Violation]:
    """CPU and memory per node stay within allocatable wherever *plane* uses more than the target."""
    old = world.target
    findings = kernel.nodes_within_limits(plane.nodes, old.nodes, world.inventory.allocatable.nodes)
    return describe(world, findings, plane, old)


def i12_sums_kept(world: ClusterState, plane: Assignment) -> list[Violation]:
    """The sums of CPU and memory per node of *plane* are those of its workers."""
    node_of, everywhere = world.inventory.node_of, np.ones(plane.nodes.shape[1], bool)
    findings = kernel.node_sums_match(plane.devices, plane.nodes, plane.rows, node_of, world.table.ints, everywhere)
    return describe(world, findings, plane, None)


def bad_sizes(columns: Ints, rows: Ints, slots: Ints) -> list[Violation]:
    """Violations of I3 by the jobs in *slots* of a decision with *columns*; *rows* has the slot of each row."""
    row_of = {slot: row for row, slot in enumerate(rows.tolist()) if slot >= 0}
    return [_bad_size(slot, int(columns[1, row_of[slot]]), int(columns[2, row_of[slot]])) for slot in slots.tolist()]


def _bad_sizes(slots: Ints, proposal: Proposal) -> list[Violation]:
    return [_bad_size(slot, int(proposal.type[slot]), int(proposal.count[slot])) for slot in slots.tolist()]


def _bad_size(slot: int, gpu_type: int, count: int) -> Violation:
    return Violation(rule="I3", text=f"{count} workers on type {gpu_type} are not allowed", slot=slot)


def i13_queues_within_limits(world: ClusterState, proposal: Proposal) -> list[Violation]:
    """The use of a queue and its children is within its limit wherever it grew."""
    queues, table, types = world.queues, world.table, world.inventory.types
    if not any(queue.limit for queue in queues.values):
        return []
    uses = _uses(world, proposal)
    used, before = (queues.usage(table.queue[active], of_type, units, len(types)) for active, of_type, units in uses)
    most = np.maximum(queues.limits(types), before)
    violations = []
    for queue, gpu_type in zip(*(used > most).nonzero(), strict=True):
        members = np.array([queue in queues.lineage(number) for number in range(len(queues.values))])
        shares = []
        for active, of_type, units in uses:
            rows = members[table.queue[active]] & (of_type == gpu_type)
            shares.append((active[rows], units[rows]))
        slot = culprit(*growth(*shares), int(used[queue, gpu_type] - most[queue, gpu_type]))
        text = f"queue {queues.names[int(queue)]} uses {used[queue, gpu_type]}/1000 of {types[int(gpu_type)]}"
        violations.append(Violation(rule="I13", text=text, slot=slot))
    return violations


def i13_users_within_limits(world: ClusterState, proposal: Proposal) -> list[Violation]:
    """The use of a user in a queue with limits per user is within the limit wherever it grew."""
    queues, types = world.queues, world.inventory.types
    if not queues.limiting_users:
        return []
    quotas, uses = UserQuotas(world.table, queues, types), _uses(world, proposal)
    used, before = (quotas.usage(*use) for use in uses)
    most = np.maximum(quotas.limit, before)
    violations = []
    gpus, gpus_before = gpus_of(used), gpus_of(before)
    exceeded = [
        (
            account,
            np.arange(len(types)) == gpu_type,
            int(used[account, gpu_type] - most[account, gpu_type]),
            types[int(gpu_type)],
        )
        for account, gpu_type in zip(*(used > most).nonzero(), strict=True)
    ]
    most_gpus = np.maximum(quotas.total, gpus_before)
    exceeded += [
        (account, np.arange(len(types)) != CPU_TYPE, int(gpus[account] - most_gpus[account]), "all GPUs")
        for account in (gpus > most_gpus).nonzero()[0]
    ]
    for account, counted, excess, name in exceeded:
        shares = []
        for active, of_type, units in uses:
            rows = (quotas.line[active] == account).any(axis=1) & counted[of_type]
            shares.append((active[rows], units[rows]))
        slot = culprit(*growth(*shares), excess)
        queue, user = quotas.owner[account]
        use = f"user {world.entities[user]!r} has {used[account][counted].sum()}/1000 of {name}"
        violations.append(Violation(rule="I13", text=f"{use} in queue {queues.names[queue]}", slot=slot))
    return violations


def i14_grants_on_eligible_nodes(world: ClusterState, proposal: Proposal) -> list[Violation]:
    """New grants use only nodes that are open to the class of their job."""
    old, new, inventory = world.target, proposal.plane, world.inventory
    if not world.table.node_class[proposal.slots].any():
        return []
    moved = (new.owner != old.owner).nonzero()[0]
    findings = kernel.grants_on_eligible_nodes(
        moved, new.owner, new.rows, old.rows, inventory.node_of, world.table.node_class, inventory.eligible
    )
    return describe(world, findings, new, old)


def _uses(world: ClusterState, proposal: Proposal) -> list[tuple[Ints, Ints, Ints]]:
    """Slots, GPU types and units of all jobs with workers: in the proposal, and in the current target."""
    table, slots, unit = world.table, world.table.order, world.table.units()
    return [
        (active := slots[count[slots] > 0], gpu_type[active], count[active] * unit[active])
        for gpu_type, count in ((proposal.type, proposal.count), (table.type, table.count))
    ]


def check(world: ClusterState, proposal: Proposal) -> list[Violation]:
    """All violations of a proposal (I1 to I5, I12 to I14)."""
    old, new, allocatable = world.target, proposal.plane, world.inventory.allocatable
    findings = kernel.check(
        new.devices,
        new.nodes,
        new.rows,
        old.devices,
        old.nodes,
        old.rows,
        allocatable.devices,
        allocatable.nodes,
        world.table.ints,
        world.table.preference,
        proposal.slots,
        proposal.type,
        proposal.count,
        proposal.protected,
    )
    if findings.shape[1] and findings[0, 0] == kernel.BAD_SIZE:
        return _bad_sizes(findings[1], proposal)
    violations = describe(world, findings, new, old, proposal.slots) if findings.shape[1] else []
    if not world.queues.unlimited:
        violations += i13_queues_within_limits(world, proposal) + i13_users_within_limits(world, proposal)
    return violations + i14_grants_on_eligible_nodes(world, proposal)


# --- invariants of the state ----------------------------------------------------------------------------------------


def i6_only_free_devices(world: ClusterState, adds: Ints, takers: Ints, rows: Ints | None = None) -> list[Violation]:
    """No operation is issued for a device that another job holds.

    *adds* are whole devices and *takers* their slots; *rows* are the other places that operations add. Must be called
    before the added devices count as held.
    """
    held = world.held
    holder = held.owner[adds]
    taken = (holder != FREE) & (holder != takers)
    violations = [
        Violation(rule="I6", text=f"device {adds[i]} is not free yet", slot=int(takers[i])) for i in taken.nonzero()[0]
    ]
    if rows is None:
        return violations
    after = held.copy()
    after.add_rows(rows)
    parts = rows[:, rows[DEVICE] >= 0]
    full = (after.shared_milli() > WHOLE) | (after.shared_gpu_memory() > world.inventory.gpu_memory)
    full |= held.owner >= 0
    return violations + [
        Violation(rule="I6", text=f"device {row[DEVICE]} has too little free", slot=int(row[SLOT]))
        for row in parts[:, full[parts[DEVICE]]].T
    ]


def i7_generations_grow(world: ClusterState, number: Ints, generation: Ints) -> list[Violation]:
    """The generation of no job has decreased."""
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


def i8_terminal_is_final(world: ClusterState, ended: Sequence[int] | Ints) -> list[Violation]:
    """No ended job (by number) is active again or ended twice, and no ended job has places."""
    numbers, times = np.unique(np.asarray(ended, np.int64), return_counts=True)
    slots = world.table.find(numbers)
    violations = [
        Violation(rule="I8", text=f"job {numbers[row]} had already ended", slot=int(slots[row]))
        for row in ((slots >= 0) | (times > 1)).nonzero()[0]
    ]
    idle = ~flags(world, world.table.order)
    for plane in (world.target, world.held):
        owner, sharer = plane.owner, plane.rows[SLOT]
        left = np.concatenate([owner[(owner >= 0) & idle[owner]], sharer[idle[sharer]]])
        violations += [Violation(rule="I8", text="an ended job has places", slot=int(slot)) for slot in np.unique(left)]
    return violations


def i9_waiting_has_reason(world: ClusterState) -> list[Violation]:
    """Every waiting job has a reason to wait."""
    table = world.table
    slots = table.order
    waits = slots[(table.phase[slots] == Phase.PENDING) | (table.phase[slots] == Phase.SUSPENDED)]
    lacks = ~np.isin(table.reason[waits], _REASONS_TO_WAIT)
    return [Violation(rule="I9", text="it waits without a reason", slot=int(slot)) for slot in waits[lacks]]


def i10_same_output(first: bytes, second: bytes) -> list[Violation]:
    """The same input gives the same output, byte for byte."""
    return [] if first == second else [Violation(rule="I10", text="two runs differ")]


def i11_conservation(world: ClusterState, submitted: int, ended: int) -> list[Violation]:
    """Every submitted job is in exactly one of the nine phases, and active jobs are known by their ids."""
    table = world.table
    slots = table.order
    phase, number = table.phase[slots], table.number[slots]
    invalid = (phase < Phase.PENDING) | (phase > Phase.SUSPENDED) | (number < 0) | (table.find(number) != slots)
    violations = [
        Violation(rule="I11", text="it is in no phase of an active job", slot=int(slot)) for slot in slots[invalid]
    ]
    active = len(np.unique(number))
    if not active == len(slots) == len(world.ids) == len(world.numbers) or active + ended != submitted:
        text = f"{submitted} submitted, but {active} active, {len(world.ids)} with an id, {ended} ended"
        violations.append(Violation(rule="I11", text=text))
    return violations


def check_state(world: ClusterState, *, submitted: int, ended: int) -> list[Violation]:
    """All violations of a state between events: I1, I4, I8, I9, I11 and the sums of I12, held and target.

    Held devices of jobs with an operation in progress, or with an unknown outcome, are not checked by I4: these jobs
    may hold both old and new places.
    """
    table = world.table
    unprotected = np.zeros(table.capacity, bool)
    slots = table.order
    phase, op = table.phase[slots], table.op[slots]
    quiet = (phase == Phase.PENDING) | (phase == Phase.RUNNING) | (phase == Phase.SUSPENDED)
    settled = slots[quiet & (table.issued[slots] == 0) & (op != OpKind.STOP)]
    target = Proposal(plane=world.target, type=table.type, count=table.count, slots=slots, protected=unprotected)
    held = Proposal(plane=world.held, type=table.held_type, count=table.held, slots=settled, protected=unprotected)
    violations = i8_terminal_is_final(world, ()) + i9_waiting_has_reason(world)
    violations += i11_conservation(world, submitted, ended)
    for state in (target, held):
        violations += i1_no_device_beyond_whole(world, state.plane)
        violations += i4_places_add_up(world, state)
        violations += i12_sums_kept(world, state.plane)
    return violations


class History:
    """Checks invariants across events: generations grow (I7), ends are final (I8)."""

    def __init__(self) -> None:
        self._number: Ints = np.zeros(0, np.int64)
        self._generation: Ints = np.zeros(0, np.int64)
        self._over: set[int] = set()

    def see(self, world: ClusterState, ended: Sequence[int] | Ints = ()) -> list[Violation]:
        """Violations since the last call; *ended* are the numbers of the jobs that ended since then."""
        over = [int(number) for number in ended]
        number = world.table.number[world.table.order]
        new = np.setdiff1d(number, self._number).tolist()
        again = [number for number in [*over, *new] if number in self._over]
        violations = i7_generations_grow(world, self._number, self._generation)
        violations += i8_terminal_is_final(world, over + again)
        self._over.update(over)
        self._number, self._generation = number, world.table.generation[world.table.order]
        return violations
