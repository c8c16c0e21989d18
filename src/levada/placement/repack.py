"""Repack the movable jobs of a few nodes, with cost and gain."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.assignment import DEVICE, FREE, INDEX, MILLI, NODE, SLOT, Assignment
from levada.core.types import WHOLE, Bools, Floats, Ints
from levada.kernels import spread
from levada.tables.cluster_state import ClusterState


class RepackRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A job that should be on fewer nodes, or a pending job that should fit."""

    slot: int
    gpu_type: int
    nodes: tuple[int, ...] = ()
    #: Size and worth of a pending job.
    count: int = 0
    worth: float = 0.0


class Repacking:
    """Movable jobs of some nodes: workers by job and node, their resources, and the capacity of the nodes."""

    def __init__(
        self,
        world: ClusterState,
        plane: Assignment,
        nodes: Ints,
        gpu_type: int,
        fixed: Bools,
        requests: tuple[RepackRequest, ...],
    ) -> None:
        table, inventory, owner = world.table, world.inventory, plane.owner
        self.world, self.plane, self.nodes, self.gpu_type = world, plane, nodes, gpu_type
        at_node = np.full(len(inventory.nodes), -1, np.int64)
        at_node[nodes] = np.arange(len(nodes))
        at = at_node[inventory.node_of]
        used = (owner >= 0) & (at >= 0) & (inventory.type_of == gpu_type)
        elsewhere = np.zeros(table.capacity, bool)
        elsewhere[owner[(owner >= 0) & (at < 0)]] = True
        movable = ~fixed & ~elsewhere
        inside = np.unique(owner[used & movable[owner]]).astype(np.int64)
        new = {request.slot: request for request in requests if request.count and not (owner == request.slot).any()}
        self.slots: Ints = np.concatenate([inside, np.array(list(new), np.int64)])
        row = np.full(table.capacity, -1, np.int64)
        row[self.slots] = np.arange(len(self.slots))
        self.whole = table.milli[self.slots] // WHOLE
        self.now = self._count(row, at, used)
        #: Workers that already run on their target device: only their moves have a cost.
        self.runs = self._count(row, at, used & (world.held.owner == owner) & (world.held.index == plane.index))
        self.size = self.now.sum(axis=1)
        self.worth = np.zeros(len(self.slots))
        for slot, request in new.items():
            self.size[row[slot]], self.worth[row[slot]] = request.count, request.worth
        self.first: Bools = np.isin(self.slots, [request.slot for request in requests])
        #: Devices, CPU and memory: per worker (`takes`), free per node (`free`), free or used by these jobs (`space`).
        self.takes = np.stack([self.whole, table.cpu[self.slots], table.memory[self.slots]], axis=1)
        open_devices = (at >= 0) & (inventory.free_milli() == WHOLE) & (owner == FREE) & (inventory.type_of == gpu_type)
        self.devices: Ints = open_devices.nonzero()[0]
        devices = np.bincount(at[self.devices], minlength=len(nodes))
        cpu, memory = inventory.free_cpu() - plane.cpu, inventory.free_memory() - plane.memory
        self.free = np.stack([devices, cpu[nodes], memory[nodes]])
        self.space = self.free + self.takes.T @ self.now
        self.racks, self.zones = inventory.rack[nodes], inventory.zone[nodes]
        #: By job and node.
        self.eligible = inventory.eligible[table.node_class[self.slots]][:, nodes]

    def _count(self, row: Ints, at: Ints, which: Bools) -> Ints:
        """Workers by job and node on the devices in the mask *which*."""
        owner = self.plane.owner
        devices = which.nonzero()[0]
        devices = devices[row[owner[devices]] >= 0]
        gpus = np.zeros((len(self.slots), len(self.nodes)), np.int64)
        np.add.at(gpus, (row[owner[devices]], at[devices]), 1)
        return gpus // self.whole[:, None]

    def pack(self, *, staying: bool) -> Ints | None:
        """Pack the largest jobs first; returns workers by job and node, or None if some do not fit.

        With *staying*, the requested jobs come first, and others stay where they are if possible.
        """
        left = self.space.copy()
        packed = np.zeros_like(self.now)
        number = self.world.table.number[self.slots]
        for job in np.lexsort((number, -self.size * self.whole, ~self.first if staying else number * 0)):
            room = self._room(left, job)
            if staying and not self.first[job] and (self.now[job] <= room).all():
                packed[job] = self.now[job]
            else:
                need = int(self.size[job])
                near: list[int] = []
                if staying and self.first[job] and (room >= need).any():
                    # Prefer the node from which the fewest workers must move.
                    unused = self._room(self.free, job) + self.now[job]
                    near = [int(np.where(room >= need, unused, -1).argmax())]
                nodes, takes = spread.spread(room, room, need, near, self.racks, self.zones, (-1, -1))
                if sum(takes) < need:
                    return None
                packed[job, nodes] = takes
            left = left - self.takes[job][:, None] * packed[job]
        return packed

    def _room(self, left: Ints, job: int) -> Ints:
        """How many workers of a job fit, per node."""
        room = left[0] // self.takes[job, 0]
        for resource in (1, 2):
            if self.takes[job, resource]:
                room = np.minimum(room, left[resource] // self.takes[job, resource])
        return np.where(self.eligible[job], np.maximum(room, 0), 0)

    def bind(self, packed: Ints | None) -> Ints | None:
        """Map the nodes of a packing to real nodes with sufficient capacity so that most workers stay."""
        if packed is None:
            return None
        # Imported here because it loads slowly and most runs do not need it.
        from scipy.optimize import linear_sum_assignment

        new, now, runs = packed[:, :, None], self.now[:, None, :], self.runs[:, None, :]
        # Running workers weigh more than planned ones, and both more than the order of nodes.
        keeps = 4 * np.minimum(new, runs).sum(axis=0) + 2 * np.minimum(new, now).sum(axis=0)
        score = keeps * len(self.nodes) + np.eye(len(self.nodes), dtype=np.int64)
        need = self.takes.T @ packed
        fits = (need[:, :, None] <= self.space[:, None, :]) | (need[:, :, None] == 0)
        barred = (packed > 0).T.astype(np.int64) @ ~self.eligible
        impossible = -1 - int(score.sum())
        virtual, real = linear_sum_assignment(
            np.where(fits.all(axis=0) & (barred == 0), score, impossible), maximize=True
        )
        bound = np.zeros_like(packed)
        bound[:, real] = packed[:, virtual]
        return bound

    def value(self, packed: Ints, gain: Floats, cost: Floats) -> tuple[float, int]:
        """The net gain of *packed*, and the number of running workers that it moves."""
        moves = np.maximum(self.runs - packed, 0).sum(axis=1)
        started = self.now.any(axis=1)
        fewer = np.where(started, self._splits(self.now) - self._splits(packed), 0)
        net = (gain[self.slots] * fewer).sum() + self.worth[~started].sum() - cost[self.slots][moves > 0].sum()
        return float(net), int(moves.sum())

    def _splits(self, counts: Ints) -> Ints:
        """The sum of the numbers of nodes, racks and zones of each job."""
        used = counts > 0
        total: Ints = used.sum(axis=1)
        for domain in (self.racks, self.zones):
            inside = domain[:, None] == np.unique(domain)[None, :]
            total = total + ((used.astype(np.int64) @ inside) > 0).sum(axis=1)
        return total


def rearrange(repacking: Repacking, packed: Ints, plane: Assignment) -> None:
    """Change *plane* to *packed*: on each node, running workers stay, lowest index first; the others move."""
    world, held = repacking.world, repacking.world.held
    changed = (packed != repacking.now).any(axis=1).nonzero()[0]
    movers: dict[int, Ints] = {}
    for job in changed:
        slot = int(repacking.slots[job])
        rows = world.places(plane, slot)
        runs = (held.owner[rows[DEVICE]] == slot) & (held.index[rows[DEVICE]] == rows[INDEX])
        stays = np.zeros(rows.shape[1], bool)
        for node, workers in zip(repacking.nodes, packed[job], strict=True):
            here = (rows[NODE] == node).nonzero()[0]
            here = here[np.lexsort((rows[INDEX, here], ~runs[here]))]
            stays[here[: workers * repacking.whole[job]]] = True
        movers[job] = np.unique(rows[INDEX, ~stays]) if rows.shape[1] else np.arange(repacking.size[job])
        world.clear_workers(plane, slot)
        if stays.any():
            world.put_workers(plane, slot, rows[:, stays])
    usable = world.inventory.free_milli() == WHOLE
    for job in changed:
        slot, whole = int(repacking.slots[job]), int(repacking.whole[job])
        for node, workers in zip(repacking.nodes, packed[job], strict=True):
            here = world.inventory.devices_of(int(node))
            lacks = int(workers) - int((plane.owner[here] == slot).sum()) // whole
            if lacks <= 0:
                continue
            free = here[usable[here] & (plane.owner[here] == FREE)]
            free = free[world.inventory.type_of[free] == repacking.gpu_type]
            late = (held.owner[free] != FREE) & (held.owner[free] != slot)
            rows = np.zeros((6, lacks * whole), np.int64)
            rows[SLOT], rows[NODE], rows[MILLI] = slot, node, WHOLE
            rows[DEVICE] = np.sort(free[np.argsort(late, kind="stable")[: lacks * whole]])
            rows[INDEX] = np.repeat(movers[job][:lacks], whole)
            movers[job] = movers[job][lacks:]
            world.put_workers(plane, slot, rows)
