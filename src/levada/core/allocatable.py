"""Allocatable capacity of a cluster, used or not; cached until it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from levada.core import layout
from levada.core.layout import UNLIMITED
from levada.core.types import CPU_TYPE, WHOLE, Bools, Ints

if TYPE_CHECKING:
    from levada.core.inventory import Inventory


class Allocatable(NamedTuple):
    """Blocks by device, node, pool and type, for kernels; `core.layout` numbers the rows of the first three."""

    devices: Ints
    nodes: Ints
    pools: Ints
    #: By type: whether the cluster has it, units without foreign use and reservations, total units; see `kernels.view`.
    supply: Ints

    @staticmethod
    def of(inventory: Inventory, eligible: Bools) -> Allocatable:
        """The current capacity of the *eligible* nodes; the others count as closed."""
        on_eligible = eligible[inventory.node_of]
        left, present = inventory.free_milli() * on_eligible, inventory.present
        supply = np.zeros((3, len(inventory.types)), np.int64)
        np.add.at(supply[1], inventory.type_of, left)
        np.add.at(supply[2], inventory.type_of, np.where(present & on_eligible, WHOLE, 0))
        supply[0] = supply[2] > 0
        supply[0, CPU_TYPE] = bool((eligible & ~inventory.lost).any())
        supply[2, CPU_TYPE] = total_of(inventory.cpu[eligible & ~inventory.lost])
        memory_left = inventory.gpu_memory - inventory.foreign_gpu_memory - inventory.reserved_gpu_memory
        devices = {
            layout.NODE_OF: inventory.node_of,
            layout.TYPE_OF: inventory.type_of,
            layout.PRESENT: present,
            layout.DEVICE_OPEN: inventory.usable & on_eligible,
            layout.WHOLE_OPEN: left == WHOLE,
            layout.MILLI_LEFT: left,
            layout.GPU_MEMORY_OF: inventory.gpu_memory,
            layout.GPU_MEMORY_LEFT: np.maximum(memory_left, 0),
        }
        nodes = {
            layout.CPU_FREE: np.where(eligible, inventory.free_cpu(), 0),
            layout.MEMORY_FREE: np.where(eligible, inventory.free_memory(), 0),
            layout.NODE_OPEN: inventory.usable_nodes & eligible,
            layout.LOST: inventory.lost,
            layout.RACK: inventory.rack,
            layout.ZONE: inventory.zone,
        }
        pools = [inventory.pool_start, inventory.pool_stop, inventory.pool_node, inventory.pool_type]
        return Allocatable(
            devices=np.stack([devices[row].astype(np.int64) for row in sorted(devices)]),
            nodes=np.stack([nodes[row].astype(np.int64) for row in sorted(nodes)]),
            pools=np.stack(pools),
            supply=supply,
        )


def total_of(amounts: Ints) -> int:
    """The sum of the positive amounts; UNLIMITED if one of them is, because many of these would overflow."""
    positive = np.maximum(amounts, 0)
    return UNLIMITED if bool((positive >= UNLIMITED // 2).any()) else int(positive.sum())
