"""Assignment of devices to jobs: one for held devices, one for targets.

Whole GPUs are in `owner` (one slot per device) and `index` (which worker of that job). Everything else is in `rows`:
fractions of a GPU, workers without a GPU, and parameter servers. `cpu` and `memory` are the total use per node.
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
    """The worker index of a parameter server: negative, so that 0 is always the first worker."""
    return -1 - replica


class Assignment:
    """Owners of devices, by slot, and use of nodes."""

    __slots__ = ("_rows", "claimed", "devices", "nodes")

    def __init__(self, devices: int, nodes: int) -> None:
        #: `owner` and `index` by device, `cpu` and `memory` by node, as blocks for kernels.
        self.devices: NDArray[np.int32] = np.zeros((2, devices), np.int32)
        self.nodes: Ints = np.zeros((2, nodes), np.int64)
        self.owner[:] = FREE
        #: Held devices whose use is not confirmed yet; meaningless for targets.
        self.claimed: Bools = np.zeros(devices, bool)
        self.rows = np.zeros((6, 0), np.int64)

    @property
    def owner(self) -> NDArray[np.int32]:
        """The slot of the job that has a whole device, FREE or SHARED, per device."""
        return self.devices[layout.OWNER]

    @property
    def index(self) -> NDArray[np.int32]:
        """The worker index of that job, per device."""
        return self.devices[layout.INDEX]

    @property
    def cpu(self) -> Ints:
        """1/1000ths of cores in use, per node."""
        return self.nodes[layout.USED_CPU]

    @property
    def memory(self) -> Ints:
        """MiB of memory in use, per node."""
        return self.nodes[layout.USED_MEMORY]

    @property
    def rows(self) -> Ints:
        """Places that are not whole devices, one per column; C-contiguous, as kernels expect."""
        return self._rows

    @rows.setter
    def rows(self, rows: Ints) -> None:
        self._rows = np.ascontiguousarray(rows, np.int64)

    def copy(self) -> Assignment:
        """An independent copy."""
        twin = Assignment.__new__(Assignment)
        twin.devices, twin.nodes = self.devices.copy(), self.nodes.copy()
        twin.rows, twin.claimed = self.rows.copy(), self.claimed.copy()
        return twin

    def take_from(self, other: Assignment) -> None:
        """Copy *other*, which has the same shape, into this assignment."""
        np.copyto(self.devices, other.devices)
        np.copyto(self.nodes, other.nodes)
        self.rows = other.rows

    def devices_of(self, slots: int | Ints) -> Ints:
        """The whole devices of a job or of several, by number."""
        wanted = np.atleast_1d(slots)
        if len(wanted) == 1:
            return (self.owner == wanted[0]).nonzero()[0]  # the usual case on a server, ten times as fast
        if not len(wanted):
            return np.zeros(0, np.int64)
        # FREE and SHARED are negative: as indices they mean the last two entries, which belong to no job.
        chosen = np.zeros(max(int(self.owner.max(initial=0)), int(wanted.max(initial=0))) + 3, bool)
        chosen[wanted] = True
        return chosen[self.owner].nonzero()[0]

    def rows_of(self, slot: int) -> Ints:
        """The rows of a job."""
        return self.rows[:, self.rows[SLOT] == slot]

    def add_rows(self, rows: Ints) -> None:
        """Add *rows*; their devices become SHARED."""
        self.rows = np.concatenate([self.rows, rows], axis=1)
        shared = rows[DEVICE][rows[DEVICE] >= 0]
        self.owner[shared] = SHARED

    def drop_rows(self, gone: Bools) -> None:
        """Remove the rows in the mask *gone*; devices without rows become FREE."""
        touched = self.rows[DEVICE][gone]
        self.rows = self.rows[:, ~gone]
        touched = touched[touched >= 0]
        if len(touched):
            self.owner[touched] = FREE
            remaining = self.rows[DEVICE]
            self.owner[remaining[remaining >= 0]] = SHARED

    def shared_milli(self) -> Ints:
        """1/1000ths used by rows, per device."""
        return self._per_device(MILLI)

    def shared_gpu_memory(self) -> Ints:
        """MiB of GPU memory used by rows, per device."""
        return self._per_device(GPU_MEMORY)

    def _per_device(self, column: int) -> Ints:
        total = np.zeros(len(self.owner), np.int64)
        on_device = self.rows[DEVICE] >= 0
        np.add.at(total, self.rows[DEVICE][on_device], self.rows[column][on_device])
        return total

    def remapped(self, moved: Ints, devices: int, nodes: int) -> Assignment:
        """This assignment with new device numbers, *moved* (-1: device removed, its workers are dropped)."""
        twin = Assignment(devices, nodes)
        remaining = moved >= 0
        twin.owner[moved[remaining]] = self.owner[remaining]
        twin.index[moved[remaining]] = self.index[remaining]
        twin.claimed[moved[remaining]] = self.claimed[remaining]
        device = self.rows[DEVICE]
        new_device = np.where(device >= 0, moved[np.maximum(device, 0)] if len(moved) else device, NO_DEVICE)
        stays = (device < 0) | (new_device >= 0)
        rows = self.rows.copy()
        rows[DEVICE] = new_device
        twin.rows = rows[:, stays]
        twin.cpu[: len(self.cpu)] = self.cpu
        twin.memory[: len(self.memory)] = self.memory
        return twin
