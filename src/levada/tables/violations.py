"""Violations of invariants as text, with the job at fault.

`kernels.invariants` returns findings as codes and subjects. If a sum is exceeded, the job at fault is the one without
whose growth it would not be, provided that there is exactly one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import numpy as np

from levada.core import layout
from levada.core.assignment import DEVICE, GPU_MEMORY, INDEX, MILLI, NODE, SHARED, SLOT, Assignment
from levada.core.types import WHOLE, Bools, Ints
from levada.kernels import invariants as kernel
from levada.tables.cluster_state import ClusterState


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A violation of an invariant."""

    rule: str
    text: str
    #: The only job at fault, or -1.
    slot: int = -1


def describe(
    world: ClusterState, findings: Ints, plane: Assignment, before: Assignment | None, decided: Ints | None = None
) -> list[Violation]:
    """Describe findings about *plane*, with the job at fault since *before*.

    *decided*: the slots of the jobs in the decision.
    """
    violations: list[Violation] = []
    taken: set[tuple[int, int]] = set()
    for rule, subject in findings.T.tolist():
        if rule in (kernel.TAKEN_DEVICE, kernel.TAKEN_ROW) and before is not None:
            if rule == kernel.TAKEN_DEVICE:
                taken.add((int(before.owner[subject]), _taker(before, plane, subject)))
            else:
                taken.add((int(before.rows[SLOT, subject]), -1))
        else:
            if taken:
                violations += _taken_devices(world, taken, decided)
                taken = set()
            violations.append(_DESCRIBE[rule](world, subject, plane, before))
    return violations + _taken_devices(world, taken, decided)


def _taken_devices(world: ClusterState, taken: set[tuple[int, int]], decided: Ints | None) -> list[Violation]:
    marks = flags(world, decided if decided is not None else np.zeros(0, np.int64))
    return [
        Violation(
            rule="I5",
            text=f"devices of job {world.table.number[victim]} must not be changed now",
            slot=victim if marks[victim] else taker,
        )
        for victim, taker in sorted(taken)
    ]


def _whole_and_parts(world: ClusterState, device: int, plane: Assignment, before: Assignment | None) -> Violation:
    parts = _parts(plane)
    owner, sharers = int(plane.owner[device]), np.unique(parts[SLOT][parts[DEVICE] == device])
    is_new = before is not None and owner >= 0 and before.owner[device] != owner
    slot = owner if is_new else _only(sharers if owner < 0 or before is not None else np.append(sharers, owner))
    return Violation(rule="I1", text=f"device {device} is assigned both as a whole and in parts", slot=slot)


def _beyond(column: int, world: ClusterState, device: int, plane: Assignment, before: Assignment | None) -> Violation:
    used = int(plane.rows[column][plane.rows[DEVICE] == device].sum())
    most, unit = (WHOLE, "/1000") if column == MILLI else (int(world.inventory.gpu_memory[device]), " MiB")
    slot = culprit(*_grown_parts(plane, before, device, column), used - most)
    return Violation(rule="I1", text=f"device {device}: {used}{unit} assigned", slot=slot)


def _closed_device(_world: ClusterState, device: int, plane: Assignment, _before: Assignment | None) -> Violation:
    return Violation(rule="I2", text=f"device {device} must not be granted", slot=int(plane.owner[device]))


def _closed_row(_world: ClusterState, row: int, plane: Assignment, _before: Assignment | None) -> Violation:
    place = plane.rows[:, row]
    return Violation(rule="I2", text=f"{_place(place)} must not be granted", slot=int(place[SLOT]))


def _left_by_others(
    column: int, world: ClusterState, device: int, plane: Assignment, before: Assignment | None
) -> Violation:
    used = int(plane.rows[column][plane.rows[DEVICE] == device].sum())
    row = layout.MILLI_LEFT if column == MILLI else layout.GPU_MEMORY_LEFT
    left = int(world.inventory.allocatable.devices[row, device])
    slot = culprit(*_grown_parts(plane, before, device, column), used - left)
    return Violation(rule="I2", text=f"device {device} has less left beside foreign use", slot=slot)


def _ineligible_device(world: ClusterState, device: int, plane: Assignment, _before: Assignment | None) -> Violation:
    slot = int(plane.owner[device])
    return _closed_to_class(world, int(world.inventory.node_of[device]), slot)


def _ineligible_row(world: ClusterState, row: int, plane: Assignment, _before: Assignment | None) -> Violation:
    return _closed_to_class(world, int(plane.rows[NODE, row]), int(plane.rows[SLOT, row]))


def _closed_to_class(world: ClusterState, node: int, slot: int) -> Violation:
    node_class = world.inventory.classes[int(world.table.node_class[slot])]
    return Violation(rule="I14", text=f"node {node} is closed to its class {node_class}", slot=slot)


def _bad_places(_world: ClusterState, slot: int, _plane: Assignment, _before: Assignment | None) -> Violation:
    return Violation(rule="I4", text="its places do not match its workers", slot=slot)


def _node_limit(name: str, world: ClusterState, node: int, plane: Assignment, before: Assignment | None) -> Violation:
    table, row = world.table, layout.USED_CPU if name == "cpu" else layout.USED_MEMORY
    free = int(world.inventory.allocatable.nodes[layout.CPU_FREE if name == "cpu" else layout.MEMORY_FREE, node])
    worker, server = (table.cpu, table.server_cpu) if name == "cpu" else (table.memory, table.server_memory)
    old = before if before is not None else plane
    grown = growth(*(_node_shares(world, assignment, node, worker, server) for assignment in (plane, old)))
    use, most = int(plane.nodes[row, node]), max(free, int(old.nodes[row, node]))
    slot = culprit(*grown, use - most)
    return Violation(rule="I12", text=f"{name} of node {node}: {use} of {free}", slot=slot)


def _node_sum(name: str, world: ClusterState, node: int, plane: Assignment, _before: Assignment | None) -> Violation:
    row = layout.USED_CPU if name == "cpu" else layout.USED_MEMORY
    stored, use = int(plane.nodes[row, node]), int(world.use_of(plane)[row, node])
    return Violation(rule="I12", text=f"{name} of node {node}: {stored} stored, {use} used")


_DESCRIBE: dict[int, Callable[[ClusterState, int, Assignment, Assignment | None], Violation]] = {
    kernel.WHOLE_AND_PARTS: _whole_and_parts,
    kernel.BEYOND_WHOLE: partial(_beyond, MILLI),
    kernel.BEYOND_MEMORY: partial(_beyond, GPU_MEMORY),
    kernel.CLOSED_DEVICE: _closed_device,
    kernel.CLOSED_ROW: _closed_row,
    kernel.LEFT_BY_OTHERS: partial(_left_by_others, MILLI),
    kernel.MEMORY_LEFT_BY_OTHERS: partial(_left_by_others, GPU_MEMORY),
    kernel.INELIGIBLE_DEVICE: _ineligible_device,
    kernel.INELIGIBLE_ROW: _ineligible_row,
    kernel.BAD_PLACES: _bad_places,
    kernel.NODE_CPU: partial(_node_limit, "cpu"),
    kernel.NODE_MEMORY: partial(_node_limit, "memory"),
    kernel.CPU_SUM: partial(_node_sum, "cpu"),
    kernel.MEMORY_SUM: partial(_node_sum, "memory"),
}


def culprit(slots: Ints, grown: Ints, surplus: int) -> int:
    """The only job without whose growth there would be no surplus; -1 if there is none or more than one."""
    return _only(slots[grown >= surplus])


def _only(slots: Ints) -> int:
    """The job if all *slots* are equal, else -1."""
    return int(slots[0]) if len(slots) and (slots == slots[0]).all() else -1


def growth(now: tuple[Ints, Ints], before: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    """Slots, and by how much the sums of their (slot, amount) pairs have grown."""
    slots, which = np.unique(np.concatenate([now[0], before[0]]), return_inverse=True)
    change = np.zeros(len(slots), np.int64)
    np.add.at(change, which, np.concatenate([now[1], -before[1]]))
    return slots, change


def _grown_parts(plane: Assignment, before: Assignment | None, device: int, column: int) -> tuple[Ints, Ints]:
    """Slots with parts of a device, and how much their parts have grown since *before*."""

    def shares(of: Assignment | None) -> tuple[Ints, Ints]:
        rows = of.rows[:, of.rows[DEVICE] == device] if of is not None else plane.rows[:, :0]
        return rows[SLOT], rows[column]

    return growth(shares(plane), shares(before))


def _node_shares(world: ClusterState, plane: Assignment, node: int, worker: Ints, server: Ints) -> tuple[Ints, Ints]:
    """Slots and amounts of all workers on a node, according to the columns *worker* and *server*."""
    devices = ((plane.owner >= 0) & (world.inventory.node_of == node)).nonzero()[0]
    slots = np.unique(np.stack([plane.owner[devices], plane.index[devices]]), axis=1)[0].astype(np.int64)
    rows = plane.rows[:, plane.rows[NODE] == node]
    amounts = np.where(rows[INDEX] >= 0, worker[rows[SLOT]], server[rows[SLOT]])
    return np.concatenate([slots, rows[SLOT]]), np.concatenate([worker[slots], amounts])


def _taker(old: Assignment, new: Assignment, device: int) -> int:
    """The only job that now has a device, or parts of it, of another job; -1 if there is none."""
    owner = int(new.owner[device])
    if owner == SHARED:
        owner = _only(new.rows[SLOT][new.rows[DEVICE] == device])
    return owner if owner >= 0 and owner != old.owner[device] else -1


def flags(world: ClusterState, slots: Ints) -> Bools:
    """A mask over all slots, True at these."""
    marks = np.zeros(world.table.capacity, bool)
    marks[slots] = True
    return marks


def _parts(plane: Assignment) -> Ints:
    """Rows with a part of a device."""
    return plane.rows[:, plane.rows[DEVICE] >= 0]


def _place(row: Ints) -> str:
    return f"device {row[DEVICE]}" if row[DEVICE] >= 0 else f"node {row[NODE]}"
