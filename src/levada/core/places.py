"""Places as rows (columns as in `Plane.rows`, a row for each whole device too), and what they cost their nodes."""

from __future__ import annotations

import numpy as np

from levada.core.inventory import Inventory
from levada.core.jobtable import JobTable
from levada.core.plane import DEVICE, FREE, INDEX, MILLI, NODE, SLOT, Plane
from levada.core.types import WHOLE, Ints


def whole_devices(inventory: Inventory, plane: Plane, devices: Ints) -> Ints:
    """Places on these devices that *plane* gives to somebody whole."""
    rows = np.zeros((6, len(devices)), np.int64)
    rows[SLOT], rows[INDEX] = plane.owner[devices], plane.index[devices]
    rows[NODE], rows[DEVICE], rows[MILLI] = inventory.node_of[devices], devices, WHOLE
    return rows


def put(table: JobTable, plane: Plane, rows: Ints) -> None:
    """Adds places to *plane*."""
    whole = rows[MILLI] == WHOLE
    plane.owner[rows[DEVICE][whole]] = rows[SLOT][whole]
    plane.index[rows[DEVICE][whole]] = rows[INDEX][whole]
    if not whole.all():
        plane.add_rows(rows[:, ~whole])
    charge(table, plane, rows, +1)


def clear(table: JobTable, inventory: Inventory, plane: Plane, slots: int | Ints) -> None:
    """Takes all places of these jobs off *plane*."""
    free(table, inventory, plane, plane.devices_of(slots))
    if plane.rows.shape[1]:
        parts = np.isin(plane.rows[SLOT], slots)
        charge(table, plane, plane.rows[:, parts], -1)
        plane.drop_rows(parts)


def free(table: JobTable, inventory: Inventory, plane: Plane, devices: Ints) -> None:
    """Nobody has these whole devices on *plane* any more."""
    charge(table, plane, whole_devices(inventory, plane, devices), -1)
    plane.owner[devices] = FREE


def charge(table: JobTable, plane: Plane, rows: Ints, sign: int) -> None:
    """Adds or takes away the cores and memory of what stands in these places."""
    if not rows.shape[1]:
        return
    rows = rows[:, once_per_worker(rows[SLOT], rows[INDEX], rows[NODE])]
    slot, worker = rows[SLOT], rows[INDEX] >= 0
    np.add.at(plane.cpu, rows[NODE], sign * np.where(worker, table.cpu[slot], table.server_cpu[slot]))
    np.add.at(plane.memory, rows[NODE], sign * np.where(worker, table.memory[slot], table.server_memory[slot]))


def once_per_worker(slot: Ints, index: Ints, node: Ints) -> Ints:
    """One place of each worker on each node it is on: it takes its cores there once, however many devices it has.

    While a worker moves it is on two nodes, and takes its cores on both.
    """
    if len(slot) < 2:
        return np.arange(len(slot))
    lowest = index.min()  # parameter servers are below zero
    # One number per worker and node: sorting those is ten times as fast as sorting columns.
    key = (slot * (node.max() + 1) + node) * (index.max() - lowest + 1) + (index - lowest)
    return np.unique(key, return_index=True)[1]
