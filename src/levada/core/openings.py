"""What of a cluster may be given away at all, whoever has it now: counted once, until the cluster changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from levada.core import layout
from levada.core.layout import UNLIMITED
from levada.core.types import CPU_TYPE, WHOLE, Ints

if TYPE_CHECKING:
    from levada.core.inventory import Inventory


class Openings(NamedTuple):
    """Blocks by device, node, pool and type, for kernels; the rows of the first three are in `core.layout`."""

    devices: Ints
    nodes: Ints
    pools: Ints
    #: By type whether there is any, what others leave of it to us, and what there is in all; as in `kernels.view`.
    supply: Ints

    @staticmethod
    def of(inventory: Inventory) -> Openings:
        """Those of *inventory* as it is."""
        left, present = inventory.free_milli(), inventory.present
        supply = np.zeros((3, len(inventory.types)), np.int64)
        np.add.at(supply[1], inventory.type_of, left)
        np.add.at(supply[2], inventory.type_of, np.where(present, WHOLE, 0))
        supply[0] = supply[2] > 0
        supply[0, CPU_TYPE] = bool((~inventory.lost).any())
        supply[2, CPU_TYPE] = total_of(inventory.cpu[~inventory.lost])
        memory_left = inventory.gpu_memory - inventory.foreign_gpu_memory - inventory.reserved_gpu_memory
        devices = {
            layout.NODE_OF: inventory.node_of,
            layout.TYPE_OF: inventory.type_of,
            layout.PRESENT: present,
            layout.DEVICE_OPEN: inventory.usable,
            layout.WHOLE_OPEN: left == WHOLE,
            layout.MILLI_LEFT: left,
            layout.GPU_MEMORY_OF: inventory.gpu_memory,
            layout.GPU_MEMORY_LEFT: np.maximum(memory_left, 0),
        }
        nodes = {
            layout.CPU_FREE: inventory.free_cpu(),
            layout.MEMORY_FREE: inventory.free_memory(),
            layout.NODE_OPEN: inventory.usable_nodes,
            layout.LOST: inventory.lost,
            layout.RACK: inventory.rack,
            layout.ZONE: inventory.zone,
        }
        pools = [inventory.pool_start, inventory.pool_stop, inventory.pool_node, inventory.pool_type]
        return Openings(
            devices=np.stack([devices[row].astype(np.int64) for row in sorted(devices)]),
            nodes=np.stack([nodes[row].astype(np.int64) for row in sorted(nodes)]),
            pools=np.stack(pools),
            supply=supply,
        )


def total_of(amounts: Ints) -> int:
    """The sum of what is there; UNLIMITED where any of it is, for many of those would not fit into a number."""
    there = np.maximum(amounts, 0)
    return UNLIMITED if bool((there >= UNLIMITED // 2).any()) else int(there.sum())
