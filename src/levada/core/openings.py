"""What of a cluster may be given away at all, whoever has it now: counted once, until the cluster changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from levada.core.types import CPU_TYPE, WHOLE, Bools, Ints

if TYPE_CHECKING:
    from levada.core.inventory import Inventory

#: Stands for "not limited" in cpu and memory columns; small enough that a thousand of them add up.
UNLIMITED = 1 << 50


class Openings(NamedTuple):
    """Columns by device, by node, and by type."""

    #: A whole device may go to a new grant.
    usable: Bools
    #: What of a device nobody of us has others leave to us, in 1/1000ths.
    left: Ints
    #: It is there, in whatever health.
    present: Bools
    #: Cores and memory that others leave to us, 0 where no grant may go; and where that is.
    cpu_free: Ints
    memory_free: Ints
    shut: Bools
    #: By type whether there is any, what others leave of it to us, and what there is in all; as in `kernels.view`.
    supply: Ints

    @staticmethod
    def of(inventory: Inventory) -> Openings:
        """Those of *inventory* as it is."""
        types = len(inventory.types)
        left, present = inventory.free_milli(), inventory.present
        supply = np.zeros((3, types), np.int64)
        np.add.at(supply[1], inventory.type_of, left)
        np.add.at(supply[2], inventory.type_of, np.where(present, WHOLE, 0))
        supply[0] = supply[2] > 0
        supply[0, CPU_TYPE] = bool((~inventory.lost).any())
        supply[2, CPU_TYPE] = total_of(inventory.cpu[~inventory.lost])
        return Openings(
            usable=inventory.usable & (inventory.foreign <= 0) & (inventory.reserved <= 0),
            left=left,
            present=present,
            cpu_free=inventory.free_cpu(),
            memory_free=inventory.free_memory(),
            shut=~inventory.usable_nodes,
            supply=supply,
        )


def total_of(amounts: Ints) -> int:
    """The sum of what is there; UNLIMITED where any of it is, for many of those would not fit into a number."""
    there = np.maximum(amounts, 0)
    return UNLIMITED if bool((there >= UNLIMITED // 2).any()) else int(there.sum())
