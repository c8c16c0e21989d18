"""What is free at a moment: at once, and as soon as everybody on the way out is gone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from levada.core.cluster import Foreign
from levada.core.decision import Reservation
from levada.core.inventory import UNLIMITED
from levada.core.plane import DEVICE, GPU_MEMORY, INDEX, MILLI, NODE, SLOT, Plane
from levada.core.types import WHOLE, Ints
from levada.policies.dragon_board import Board
from levada.tables.snapshot import Snapshot

_BITS = 20


class Free(NamedTuple):
    """Two boards, the same object where nobody is on the way out."""

    #: Neither claimed nor used by anybody.
    now: Board
    #: Not claimed by anybody who stays.
    soon: Board


def free(snap: Snapshot, kept: Iterable[Reservation] = ()) -> Free:
    """What jobs may be given; reservations in *kept* are counted as free."""
    inventory, target = snap.inventory, snap.target
    milli = inventory.free_milli()
    milli[target.owner >= 0] = 0
    milli -= target.shared_milli()
    memory = np.where(inventory.gpu_memory >= UNLIMITED, 0, inventory.gpu_memory)
    memory = memory - inventory.foreign_gpu_memory - inventory.reserved_gpu_memory - target.shared_gpu_memory()
    cpu, node_memory = inventory.free_cpu() - target.cpu, inventory.free_memory() - target.memory
    for reservation in kept:
        node = reservation.node
        cpu[node] += min(reservation.cpu, inventory.reserved_cpu[node])
        node_memory[node] += min(reservation.memory, inventory.reserved_memory[node])
        for device, its_milli, its_memory in reservation.devices:
            if target.owner[device] < 0 and inventory.usable[device]:
                milli[device] += min(its_milli, inventory.reserved[device])
                memory[device] += min(its_memory, inventory.reserved_gpu_memory[device])
    soon = Board(inventory, cpu, node_memory, milli, memory)
    _put_tags(soon, snap)
    now = _without_leavers(soon, snap)
    leaving = [pod for pod in snap.foreign.values() if pod.leaving and pod.node is not None]
    if leaving:
        now = soon.copy() if now is soon else now
        for pod in leaving:
            _give_back(soon, pod)
    return Free(now, soon)


def _put_tags(board: Board, snap: Snapshot) -> None:
    rows = snap.target.rows
    rows = rows[:, rows[DEVICE] >= 0]
    for column, tags in (
        (board.affinity, snap.table.affinity),
        (board.anti_affinity, snap.table.anti_affinity),
        (board.exclusion, snap.table.exclusion),
    ):
        np.maximum.at(column, rows[DEVICE], tags[rows[SLOT]])
        board.tagged = board.tagged or bool(column.any())


def _without_leavers(board: Board, snap: Snapshot) -> Board:
    """*board* without what jobs still hold and should not; itself where there is nothing of the kind."""
    held, target, table = snap.held, snap.target, snap.table
    if held is target or (np.array_equal(held.owner, target.owner) and np.array_equal(held.rows, target.rows)):
        return board
    leaving = np.setdiff1d(_workers(held, snap), _workers(target, snap))
    still = (held.owner >= 0) & (held.owner != target.owner)
    if not len(leaving) and not still.any():
        return board
    left = board.copy()
    left.milli[still] = 0
    slot, index, node = leaving >> 2 * _BITS, (leaving >> _BITS) % (1 << _BITS), leaving % (1 << _BITS)
    is_worker = index >= 1 << (_BITS - 1)
    np.subtract.at(left.cpu, node, np.where(is_worker, table.cpu[slot], table.server_cpu[slot]))
    np.subtract.at(left.memory, node, np.where(is_worker, table.memory[slot], table.server_memory[slot]))
    rows = held.rows[:, np.isin(_keys(held.rows[SLOT], held.rows[INDEX], held.rows[NODE]), leaving)]
    rows = rows[:, rows[DEVICE] >= 0]
    np.subtract.at(left.milli, rows[DEVICE], rows[MILLI])
    np.subtract.at(left.gpu_memory, rows[DEVICE], rows[GPU_MEMORY])
    np.maximum(left.milli, 0, out=left.milli)
    left.rebuild()
    return left


def _workers(plane: Plane, snap: Snapshot) -> Ints:
    """One number for each worker and server on *plane* and its node, ascending."""
    owned = (plane.owner >= 0).nonzero()[0]
    whole = _keys(plane.owner[owned].astype(np.int64), plane.index[owned], snap.inventory.node_of[owned])
    return np.unique(np.concatenate([whole, _keys(plane.rows[SLOT], plane.rows[INDEX], plane.rows[NODE])]))


def _keys(slot: Ints, index: Ints, node: Ints) -> Ints:
    return (((slot << _BITS) + index + (1 << (_BITS - 1))) << _BITS) + node


def _give_back(board: Board, pod: Foreign) -> None:
    """Puts on *board* what a foreign pod leaves behind."""
    inventory = board.inventory
    node = inventory.nodes.find(pod.node or "")
    if node < 0 or not inventory.usable_nodes[node]:
        return
    its = np.arange(board.first[node], board.stop[node])
    if pod.devices:
        its = its[[inventory.device_id(device) in pod.devices for device in its.tolist()]]
    its = its[(inventory.foreign[its] > 0) & inventory.usable[its]]
    part = pod.milli % WHOLE
    its = its[: 1 if part else pod.milli // WHOLE]
    milli = np.full(len(its), part or WHOLE)
    memory = np.full(len(its), pod.gpu_memory if part else 0)
    one = np.array([node])
    board.give(one, np.array([pod.cpu]), np.array([pod.memory]), its, milli, memory)
