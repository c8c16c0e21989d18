"""Places as rows, and the CPU and memory that they use on their nodes.

Rows are as in `Assignment.rows`, with one more row per whole device.
"""

from __future__ import annotations

import numpy as np

from levada.core.assignment import DEVICE, FREE, INDEX, MILLI, NODE, SLOT, Assignment
from levada.core.inventory import Inventory
from levada.core.types import FEW, WHOLE, Ints, distinct
from levada.tables.job_table import JobTable

#: No places.
NOWHERE: Ints = np.zeros((6, 0), np.int64)


def whole_devices(inventory: Inventory, plane: Assignment, devices: Ints) -> Ints:
    """Rows of these devices, which *plane* assigns as whole devices."""
    rows = np.zeros((6, len(devices)), np.int64)
    rows[SLOT], rows[INDEX] = plane.owner[devices], plane.index[devices]
    rows[NODE], rows[DEVICE], rows[MILLI] = inventory.node_of[devices], devices, WHOLE
    return rows


def standing(inventory: Inventory, plane: Assignment, slots: Ints) -> Ints:
    """All places of these jobs on *plane*."""
    whole = whole_devices(inventory, plane, plane.devices_of(slots))
    if not plane.rows.shape[1]:
        return whole
    return np.concatenate([whole, plane.rows[:, np.isin(plane.rows[SLOT], slots)]], axis=1)


def put(table: JobTable, inventory: Inventory, plane: Assignment, rows: Ints, *, first: bool = False) -> None:
    """Add places to *plane*. *first*: the jobs are known to have no other places."""
    before = NOWHERE if first and _takes_any(table, rows[SLOT]) else _standing(table, inventory, plane, rows[SLOT])
    whole = rows[MILLI] == WHOLE
    plane.owner[rows[DEVICE][whole]] = rows[SLOT][whole]
    plane.index[rows[DEVICE][whole]] = rows[INDEX][whole]
    if not whole.all():
        plane.add_rows(rows[:, ~whole])
    _charge(table, plane, rows, before, +1)


def clear(table: JobTable, inventory: Inventory, plane: Assignment, slots: int | Ints) -> None:
    """Remove all places of these jobs from *plane*."""
    devices = plane.devices_of(slots)
    gone = whole_devices(inventory, plane, devices)
    plane.owner[devices] = FREE
    plane.claimed[devices] = False
    if plane.rows.shape[1]:
        parts = np.isin(plane.rows[SLOT], slots)
        gone = np.concatenate([gone, plane.rows[:, parts]], axis=1)
        plane.drop_rows(parts)
    if _takes_any(table, gone[SLOT]):
        _charge(table, plane, gone, NOWHERE, -1)


def free(table: JobTable, inventory: Inventory, plane: Assignment, devices: Ints) -> None:
    """Free these whole devices on *plane*."""
    rows = whole_devices(inventory, plane, devices)
    plane.owner[devices] = FREE
    _charge(table, plane, rows, _standing(table, inventory, plane, rows[SLOT]), -1)


def _standing(table: JobTable, inventory: Inventory, plane: Assignment, slots: Ints) -> Ints | None:
    """Places of these jobs on *plane*; None if none of the jobs uses CPU or memory."""
    return standing(inventory, plane, distinct(slots)) if _takes_any(table, slots) else None


def _takes_any(table: JobTable, slots: Ints) -> bool:
    """Whether any of these jobs uses CPU or memory."""
    return bool(table.cpu[slots].any() or table.memory[slots].any() or table.servers[slots].any())


def _charge(table: JobTable, plane: Assignment, rows: Ints, others: Ints | None, sign: int) -> None:
    """Add or subtract the CPU and memory of the workers in *rows*, except for those also in *others*.

    A worker uses its CPU once per node, whatever the number of its devices there.
    """
    if others is None or not rows.shape[1]:
        return
    if rows.shape[1] + others.shape[1] < FEW:
        for slot, index, node in _workers(rows) - _workers(others):
            worker = index >= 0
            plane.cpu[node] += sign * (table.cpu if worker else table.server_cpu).item(slot)
            plane.memory[node] += sign * (table.memory if worker else table.server_memory).item(slot)
        return
    both = np.concatenate([others, rows], axis=1)
    first = once_per_worker(both[SLOT], both[INDEX], both[NODE])
    rows = both[:, first[first >= others.shape[1]]]
    cpu, memory = takes(table, rows)
    np.add.at(plane.cpu, rows[NODE], sign * cpu)
    np.add.at(plane.memory, rows[NODE], sign * memory)


def _workers(rows: Ints) -> set[tuple[int, int, int]]:
    """(slot, index, node) of each worker."""
    return set(zip(rows[SLOT].tolist(), rows[INDEX].tolist(), rows[NODE].tolist(), strict=True))


def takes(table: JobTable, rows: Ints) -> tuple[Ints, Ints]:
    """CPU and memory of the worker or parameter server in each row."""
    slot = rows[SLOT]
    worker = rows[INDEX] >= 0
    if worker.all():
        return table.cpu[slot], table.memory[slot]
    return (
        np.where(worker, table.cpu[slot], table.server_cpu[slot]),
        np.where(worker, table.memory[slot], table.server_memory[slot]),
    )


def once_per_worker(slot: Ints, index: Ints, node: Ints) -> Ints:
    """The first row of each worker on each of its nodes; a worker that moves is on two nodes."""
    if len(slot) < FEW:
        first_at: dict[tuple[int, int, int], int] = {}
        for at, worker in enumerate(zip(slot.tolist(), index.tolist(), node.tolist(), strict=True)):
            first_at.setdefault(worker, at)
        return np.array(list(first_at.values()), np.int64)
    lowest = index.min()  # negative for parameter servers
    # Sorting one key per worker and node is ten times as fast as sorting columns.
    key = (slot * (node.max() + 1) + node) * (index.max() - lowest + 1) + (index - lowest)
    by_key = key.argsort(kind="stable")
    ordered = key[by_key]
    first = np.ones(len(key), bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return by_key[first]
