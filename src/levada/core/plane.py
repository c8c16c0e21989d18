"""Who is on which device: the same columns serve for what jobs hold and for what they should hold.

Whole GPUs are in `owner` (one slot per device) and `index` (which worker of that job). Everything else is in `rows`:
parts of a GPU, workers without one, and parameter servers. `cpu` and `memory` say what all of them use per node.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from levada.core import layout
from levada.core.types import Bools, Ints

#: Values of `owner` besides a slot: the device is free, or shared by the jobs in `rows`.
FREE, SHARED = layout.FREE, layout.SHARED

#: Columns of `rows`.
SLOT, INDEX, NODE = layout.ROW_SLOT, layout.ROW_INDEX, layout.ROW_NODE
DEVICE, MILLI, GPU_MEMORY = layout.ROW_DEVICE, layout.ROW_MILLI, layout.ROW_MEMORY
#: Value of DEVICE for a worker without a GPU.
NO_DEVICE = -1


def server_index(replica: int) -> int:
    """The worker index of a parameter server: below zero, so that 0 stays the first worker."""
    return -1 - replica


class Plane:
    """Ownership of devices and use of nodes by slot."""

    __slots__ = ("_rows", "claimed", "devices", "nodes")

    def __init__(self, devices: int, nodes: int) -> None:
        #: `owner` and `index` by device, `cpu` and `memory` by node: kernels get blocks, one argument each.
        self.devices: NDArray[np.int32] = np.zeros((2, devices), np.int32)
        self.nodes: Ints = np.zeros((2, nodes), np.int64)
        self.owner[:] = FREE
        #: Held since an operation went out, and not yet seen to be used; has no meaning for targets.
        self.claimed: Bools = np.zeros(devices, bool)
        self.rows = np.zeros((6, 0), np.int64)

    @property
    def owner(self) -> NDArray[np.int32]:
        """The slot that has a device whole, FREE or SHARED."""
        return self.devices[layout.OWNER]

    @property
    def index(self) -> NDArray[np.int32]:
        """Which worker of that job has it."""
        return self.devices[layout.INDEX]

    @property
    def cpu(self) -> Ints:
        """Cores in use per node."""
        return self.nodes[layout.USED_CPU]

    @property
    def memory(self) -> Ints:
        """Memory in use per node."""
        return self.nodes[layout.USED_MEMORY]

    @property
    def rows(self) -> Ints:
        """Places that are not whole devices, one per column; kernels are compiled for one order in memory."""
        return self._rows

    @rows.setter
    def rows(self, rows: Ints) -> None:
        self._rows = np.ascontiguousarray(rows, np.int64)

    def copy(self) -> Plane:
        """An independent copy."""
        twin = Plane.__new__(Plane)
        twin.devices, twin.nodes = self.devices.copy(), self.nodes.copy()
        twin.rows, twin.claimed = self.rows.copy(), self.claimed.copy()
        return twin

    def take_from(self, other: Plane) -> None:
        """Becomes equal to *other*, keeping its own arrays where they fit."""
        np.copyto(self.devices, other.devices)
        np.copyto(self.nodes, other.nodes)
        self.rows = other.rows

    def devices_of(self, slots: int | Ints) -> Ints:
        """The whole devices of a job or of several, by number."""
        wanted = np.atleast_1d(slots)
        if len(wanted) == 1:
            return (self.owner == wanted[0]).nonzero()[0]  # the usual live case, ten times as fast
        if not len(wanted):
            return np.zeros(0, np.int64)
        # FREE and SHARED are below zero: they look up the last two places, which no job has.
        chosen = np.zeros(max(int(self.owner.max(initial=0)), int(wanted.max(initial=0))) + 3, bool)
        chosen[wanted] = True
        return chosen[self.owner].nonzero()[0]

    def rows_of(self, slot: int) -> Ints:
        """The rows of a job: parts of GPUs, workers without one, parameter servers."""
        return self.rows[:, self.rows[SLOT] == slot]

    def add_rows(self, rows: Ints) -> None:
        """Adds *rows*; the devices they cut up become SHARED."""
        self.rows = np.concatenate([self.rows, rows], axis=1)
        cut = rows[DEVICE][rows[DEVICE] >= 0]
        self.owner[cut] = SHARED

    def drop_rows(self, gone: Bools) -> None:
        """Removes the rows under *gone*; a device that nobody shares any more is FREE."""
        touched = self.rows[DEVICE][gone]
        self.rows = self.rows[:, ~gone]
        touched = touched[touched >= 0]
        if len(touched):
            self.owner[touched] = FREE
            still = self.rows[DEVICE]
            self.owner[still[still >= 0]] = SHARED

    def shared_milli(self) -> Ints:
        """Per device the 1/1000ths that rows take."""
        return self._per_device(MILLI)

    def shared_gpu_memory(self) -> Ints:
        """Per device the MiB that rows take."""
        return self._per_device(GPU_MEMORY)

    def _per_device(self, column: int) -> Ints:
        total = np.zeros(len(self.owner), np.int64)
        on_device = self.rows[DEVICE] >= 0
        np.add.at(total, self.rows[DEVICE][on_device], self.rows[column][on_device])
        return total

    def remapped(self, moved: Ints, devices: int, nodes: int) -> Plane:
        """The plane after devices were numbered anew; what stood on a device that is gone is dropped."""
        twin = Plane(devices, nodes)
        kept = moved >= 0
        twin.owner[moved[kept]] = self.owner[kept]
        twin.index[moved[kept]] = self.index[kept]
        twin.claimed[moved[kept]] = self.claimed[kept]
        device = self.rows[DEVICE]
        new_device = np.where(device >= 0, moved[np.maximum(device, 0)] if len(moved) else device, NO_DEVICE)
        stays = (device < 0) | (new_device >= 0)
        rows = self.rows.copy()
        rows[DEVICE] = new_device
        twin.rows = rows[:, stays]
        twin.cpu[: len(self.cpu)] = self.cpu
        twin.memory[: len(self.memory)] = self.memory
        return twin
