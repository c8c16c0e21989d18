"""Free capacity of nodes for the workers of one job.

Whole GPUs, GPU fractions, or CPU and memory.
"""

from __future__ import annotations

import numpy as np

from levada.core.assignment import DEVICE, FREE, GPU_MEMORY, INDEX, MILLI, NO_DEVICE, NODE, SHARED, SLOT, Assignment
from levada.core.inventory import UNLIMITED
from levada.core.types import WHOLE, Bools, Ints
from levada.placement.fractions import DeviceColumns, ShareRequest, best_device, tags_allow
from levada.tables.cluster_state import ClusterState

#: More workers than any job has, and few enough to add up over all nodes.
_MANY = 1 << 21


class NodeRoom:
    """Free capacity of a plane for the workers of one job; `place` updates both."""

    def __init__(self, world: ClusterState, plane: Assignment, slot: int, gpu_type: int) -> None:
        self.world, self.plane, self.slot = world, plane, slot
        table, inventory = world.table, world.inventory
        self.milli, self.gpu_memory = int(table.milli[slot]), int(table.gpu_memory[slot])
        self.cpu, self.memory = int(table.cpu[slot]), int(table.memory[slot])
        self.in_parts = 0 < self.milli < WHOLE
        eligible = inventory.eligible[table.node_class[slot]]
        self.open_nodes: Bools = inventory.usable_nodes & eligible
        self.cpu_left = inventory.free_cpu() - plane.cpu
        self.memory_left = inventory.free_memory() - plane.memory
        of_type = (inventory.type_of == gpu_type) & eligible[inventory.node_of]
        #: Candidate devices, ascending; the columns below refer to them.
        self.devices: Ints = np.arange(len(of_type))
        if not self.in_parts:
            self.devices = (of_type & (plane.owner == FREE) & (inventory.free_milli() == WHOLE)).nonzero()[0]
        self.node_of = inventory.node_of[self.devices]
        holder = world.held.owner[self.devices]
        self.at_once: Bools = (holder == FREE) | (holder == slot) | (self.in_parts & (holder == SHARED))
        #: Workers that each device can take; parts of a worker for workers with several GPUs.
        self.fits = np.ones(len(self.devices), np.int64)
        if self.in_parts:
            self._init_parts(of_type)

    def _init_parts(self, of_type: Bools) -> None:
        """Compute free compute, free memory and tags of each device.

        A device may have several tags; only whether the tag of this job is among them matters.
        """
        table, inventory, plane = self.world.table, self.world.inventory, self.plane
        rows = plane.rows[:, plane.rows[DEVICE] >= 0]
        self.free_milli = inventory.free_milli()
        self.is_open: Bools = (plane.owner == SHARED) | (self.free_milli < WHOLE)
        self.free_milli[~of_type | (plane.owner >= 0)] = 0
        np.subtract.at(self.free_milli, rows[DEVICE], rows[MILLI])
        self.free_memory = inventory.gpu_memory - inventory.foreign_gpu_memory - inventory.reserved_gpu_memory
        np.subtract.at(self.free_memory, rows[DEVICE], rows[GPU_MEMORY])
        self.wants = tuple(int(column[self.slot]) for column in (table.affinity, table.anti_affinity, table.exclusion))
        self.tags = np.zeros((3, len(self.devices)), np.int64)
        self.tags[2, rows[DEVICE]] = table.exclusion[rows[SLOT]]
        for tag, column in enumerate((table.affinity, table.anti_affinity)):
            self.tags[tag, rows[DEVICE][column[rows[SLOT]] == self.wants[tag]]] = self.wants[tag]
        self.fits = self._fits(slice(None))

    def workers(self, *, at_once: bool = False) -> Ints:
        """How many more workers fit, per node; with *at_once*, only on devices that no other job holds."""
        nodes = len(self.cpu_left)
        if self.milli == 0:
            room = np.where(self.open_nodes, _MANY, 0)
        else:
            fits = self.fits * self.at_once if at_once else self.fits
            room = np.bincount(self.node_of, weights=fits, minlength=nodes).astype(np.int64)
            room //= max(self.milli // WHOLE, 1)
        for left, per_worker in ((self.cpu_left, self.cpu), (self.memory_left, self.memory)):
            if per_worker:
                room = np.minimum(room, np.maximum(left // per_worker, 0))
        return room

    def _fits(self, at: Ints | slice) -> Ints:
        """How many more parts fit on the devices at these positions."""
        fits = np.maximum(self.free_milli[at] // self.milli, 0)
        if self.gpu_memory:
            fits = np.minimum(fits, np.maximum(self.free_memory[at] // self.gpu_memory, 0))
        fits[self.is_open[at] & ~tags_allow(*self.tags[:, at], *self.wants)] = 0
        # Workers of a job with an anti-affinity tag never share a device.
        return np.minimum(fits, 1) if self.wants[1] else fits

    def best_part(self, nodes: Bools) -> int:
        """The node, among those in the mask *nodes*, with the best device for one fraction."""
        offers = nodes[self.node_of] & (self.fits > 0)
        # Any open device has less left over than an idle one, and idle ones are equal.
        is_open = (offers & self.is_open).nonzero()[0]
        return int(self.node_of[self._best_part(is_open) if len(is_open) else offers.argmax()])

    def _best_part(self, at: Ints) -> int:
        """The position, among *at*, of the best device for one fraction."""
        devices = DeviceColumns(
            self.free_milli[at], self.free_memory[at], self.is_open[at], self.node_of[at], *self.tags[:, at]
        )
        return int(at[best_device(devices, ShareRequest(self.milli, self.gpu_memory, *self.wants))])

    def place(self, node: int, indices: Ints) -> None:
        """Place the workers *indices* on *node*, which must have capacity for them."""
        if self.milli == 0:
            self._put(indices, node, np.full(len(indices), NO_DEVICE))
            return
        here = (self.node_of == node).nonzero()[0]
        if self.in_parts:
            for index in indices:
                self._put(np.array([index]), node, np.array([self._best_part(here)]))
        else:
            gpus = self.milli // WHOLE
            here = here[np.argsort(~self.at_once[here], kind="stable")[: len(indices) * gpus]]
            self._put(np.repeat(indices, gpus), node, np.sort(here))

    def restore(self, rows: Ints) -> bool:
        """Place one worker as in *rows*; returns False and changes nothing if that is not free."""
        node = int(rows[NODE, 0])
        if not (rows[NODE] == node).all() or self.workers()[node] == 0:
            return False
        at = np.full(1, NO_DEVICE)
        if self.milli > 0:
            at = np.searchsorted(self.devices, rows[DEVICE])
            known = (at < len(self.devices)) & (rows[DEVICE] >= 0)
            if not known.all() or (self.devices[at] != rows[DEVICE]).any() or len(at) != max(self.milli // WHOLE, 1):
                return False
            if not self.fits[at].all():
                return False
        self._put(rows[INDEX], node, at)
        return True

    def _put(self, index: Ints, node: int, at: Ints) -> None:
        """Add places, one per entry of *index*; *at* are positions in `devices`."""
        rows = np.zeros((6, len(index)), np.int64)
        rows[SLOT], rows[INDEX], rows[NODE], rows[DEVICE] = self.slot, index, node, NO_DEVICE
        if self.milli > 0:
            rows[DEVICE] = self.devices[at]
            rows[MILLI] = min(self.milli, WHOLE)
        rows[GPU_MEMORY] = self.gpu_memory if self.in_parts else 0
        self.world.put_workers(self.plane, self.slot, rows)
        workers = len(np.unique(index))
        self.cpu_left[node] -= workers * self.cpu
        self.memory_left[node] -= workers * self.memory
        if self.in_parts:
            self.free_milli[at] -= self.milli
            self.free_memory[at] -= self.gpu_memory
            self.is_open[at] = True
            self.tags[:, at] = np.maximum(self.tags[:, at], np.array(self.wants)[:, None])
            self.fits[at] = self._fits(at)
        elif self.milli > 0:
            stays = np.ones(len(self.devices), bool)
            stays[at] = False
            self.devices, self.node_of = self.devices[stays], self.node_of[stays]
            self.at_once, self.fits = self.at_once[stays], self.fits[stays]

    def place_servers(self, replicas: list[int], workers: int) -> bool:
        """Place parameter servers where most of *workers* fit as well; returns False if some do not fit.

        All are placed on one node if possible: the tightest one that also holds all workers. If some do not fit,
        nothing changes.
        """
        table, slot = self.world.table, self.slot
        cpu, memory = int(table.server_cpu[slot]), int(table.server_memory[slot])
        cpu_left, memory_left = self.cpu_left.copy(), self.memory_left.copy()
        nodes: list[int] = []
        for together in (len(replicas), 1):
            while len(nodes) < len(replicas):
                fits = (
                    self.open_nodes
                    & _holds(self.cpu_left, together * cpu)
                    & _holds(self.memory_left, together * memory)
                )
                if not fits.any():
                    break
                self.cpu_left -= together * cpu
                self.memory_left -= together * memory
                beside = self.workers()
                self.cpu_left += together * cpu
                self.memory_left += together * memory
                spare = np.where(beside >= workers, beside - UNLIMITED, -beside)
                node = int(np.where(fits, spare, UNLIMITED).argmin())
                self.cpu_left[node] -= together * cpu
                self.memory_left[node] -= together * memory
                nodes += [node] * together
        if len(nodes) < len(replicas):
            self.cpu_left, self.memory_left = cpu_left, memory_left
            return False
        rows = np.zeros((6, len(replicas)), np.int64)
        rows[SLOT], rows[INDEX], rows[NODE], rows[DEVICE] = slot, replicas, nodes, NO_DEVICE
        self.world.put_workers(self.plane, slot, rows)
        return True


def _holds(left: Ints, need: int) -> Bools:
    """Where *need* fits; a need of 0 fits everywhere, even on overused nodes."""
    return left >= need if need else np.ones(len(left), bool)
