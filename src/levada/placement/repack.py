"""Packing the movable jobs of a few nodes anew, and what that is worth."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.plane import DEVICE, FREE, INDEX, MILLI, NODE, SLOT, Plane
from levada.core.types import WHOLE, Bools, Floats, Ints
from levada.kernels import spread
from levada.tables.world import World


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A job that could be better off: on fewer nodes, or running at all."""

    slot: int
    gpu_type: int
    nodes: tuple[int, ...] = ()
    #: Of a job that waits.
    count: int = 0
    worth: float = 0.0


class Puzzle:
    """The movable jobs of some nodes: workers by job and node, what each takes, and what the nodes have for them."""

    def __init__(
        self, world: World, plane: Plane, nodes: Ints, gpu_type: int, fixed: Bools, wishes: tuple[Wish, ...]
    ) -> None:
        table, inventory, owner = world.table, world.inventory, plane.owner
        self.world, self.plane, self.nodes, self.gpu_type = world, plane, nodes, gpu_type
        at_node = np.full(len(inventory.nodes), -1, np.int64)
        at_node[nodes] = np.arange(len(nodes))
        at = at_node[inventory.node_of]
        mine = (owner >= 0) & (at >= 0) & (inventory.type_of == gpu_type)
        astray = np.zeros(table.capacity, bool)
        astray[owner[(owner >= 0) & (at < 0)]] = True
        movable = ~fixed & ~astray
        inside = np.unique(owner[mine & movable[owner]]).astype(np.int64)
        new = {wish.slot: wish for wish in wishes if wish.count and not (owner == wish.slot).any()}
        self.slots: Ints = np.concatenate([inside, np.array(list(new), np.int64)])
        row = np.full(table.capacity, -1, np.int64)
        row[self.slots] = np.arange(len(self.slots))
        self.whole = table.milli[self.slots] // WHOLE
        self.now = self._count(row, at, mine)
        #: Workers that run where they are: only these cost something to move.
        self.runs = self._count(row, at, mine & (world.held.owner == owner) & (world.held.index == plane.index))
        self.size = self.now.sum(axis=1)
        self.worth = np.zeros(len(self.slots))
        for slot, wish in new.items():
            self.size[row[slot]], self.worth[row[slot]] = wish.count, wish.worth
        self.first: Bools = np.isin(self.slots, [wish.slot for wish in wishes])
        #: Three resources, devices, cores and memory: per worker, free per node, and there for all of these jobs.
        self.takes = np.stack([self.whole, table.cpu[self.slots], table.memory[self.slots]], axis=1)
        open_devices = (at >= 0) & (inventory.free_milli() == WHOLE) & (owner == FREE) & (inventory.type_of == gpu_type)
        self.devices: Ints = open_devices.nonzero()[0]
        devices = np.bincount(at[self.devices], minlength=len(nodes))
        cpu, memory = inventory.free_cpu() - plane.cpu, inventory.free_memory() - plane.memory
        self.free = np.stack([devices, cpu[nodes], memory[nodes]])
        self.space = self.free + self.takes.T @ self.now
        self.racks, self.zones = inventory.rack[nodes], inventory.zone[nodes]

    def _count(self, row: Ints, at: Ints, which: Bools) -> Ints:
        """Workers by job and node on the devices under *which*."""
        owner = self.plane.owner
        devices = which.nonzero()[0]
        devices = devices[row[owner[devices]] >= 0]
        found = np.zeros((len(self.slots), len(self.nodes)), np.int64)
        np.add.at(found, (row[owner[devices]], at[devices]), 1)
        return found // self.whole[:, None]

    def pack(self, *, staying: bool) -> Ints | None:
        """Workers by job and node, largest jobs first; None where some do not fit.

        With *staying* those come first for whose sake it is done, and others stay if they still can.
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
                    # Where fewest others have to leave.
                    calm = self._room(self.free, job) + self.now[job]
                    near = [int(np.where(room >= need, calm, -1).argmax())]
                nodes, takes = spread.spread(room, room, need, near, self.racks, self.zones, (-1, -1))
                if sum(takes) < need:
                    return None
                packed[job, nodes] = takes
            left = left - self.takes[job][:, None] * packed[job]
        return packed

    def _room(self, left: Ints, job: int) -> Ints:
        """Per node how many workers of a job fit."""
        room = left[0] // self.takes[job, 0]
        for resource in (1, 2):
            if self.takes[job, resource]:
                room = np.minimum(room, left[resource] // self.takes[job, resource])
        return np.maximum(room, 0)

    def bind(self, packed: Ints | None) -> Ints | None:
        """The same packing with its nodes renamed so that most workers stay, where each has the capacity."""
        if packed is None:
            return None
        # Takes longer to load than all the rest of the program, and most runs never come here.
        from scipy.optimize import linear_sum_assignment

        new, now, runs = packed[:, :, None], self.now[:, None, :], self.runs[:, None, :]
        # A worker that runs weighs more than one that is only planned, and both more than keeping the order.
        keeps = 4 * np.minimum(new, runs).sum(axis=0) + 2 * np.minimum(new, now).sum(axis=0)
        score = keeps * len(self.nodes) + np.eye(len(self.nodes), dtype=np.int64)
        need = self.takes.T @ packed
        fits = (need[:, :, None] <= self.space[:, None, :]) | (need[:, :, None] == 0)
        impossible = -1 - int(score.sum())
        virtual, real = linear_sum_assignment(np.where(fits.all(axis=0), score, impossible), maximize=True)
        bound = np.zeros_like(packed)
        bound[:, real] = packed[:, virtual]
        return bound

    def value(self, packed: Ints, gain: Floats, cost: Floats) -> tuple[float, int]:
        """What *packed* is worth after its costs, and how many running workers it moves."""
        moves = np.maximum(self.runs - packed, 0).sum(axis=1)
        started = self.now.any(axis=1)
        fewer = np.where(started, self._splits(self.now) - self._splits(packed), 0)
        net = (gain[self.slots] * fewer).sum() + self.worth[~started].sum() - cost[self.slots][moves > 0].sum()
        return float(net), int(moves.sum())

    def _splits(self, counts: Ints) -> Ints:
        """Nodes, racks and zones that each job is on, in all."""
        used = counts > 0
        total: Ints = used.sum(axis=1)
        for domain in (self.racks, self.zones):
            inside = domain[:, None] == np.unique(domain)[None, :]
            total = total + ((used.astype(np.int64) @ inside) > 0).sum(axis=1)
        return total


def rearrange(puzzle: Puzzle, packed: Ints, plane: Plane) -> None:
    """Changes *plane* to *packed*: on each node those stay who run there, lowest index first; the others move."""
    world, held = puzzle.world, puzzle.world.held
    changed = (packed != puzzle.now).any(axis=1).nonzero()[0]
    movers: dict[int, Ints] = {}
    for job in changed:
        slot = int(puzzle.slots[job])
        rows = world.places(plane, slot)
        runs = (held.owner[rows[DEVICE]] == slot) & (held.index[rows[DEVICE]] == rows[INDEX])
        stays = np.zeros(rows.shape[1], bool)
        for node, workers in zip(puzzle.nodes, packed[job], strict=True):
            here = (rows[NODE] == node).nonzero()[0]
            here = here[np.lexsort((rows[INDEX, here], ~runs[here]))]
            stays[here[: workers * puzzle.whole[job]]] = True
        movers[job] = np.unique(rows[INDEX, ~stays]) if rows.shape[1] else np.arange(puzzle.size[job])
        world.clear_workers(plane, slot)
        if stays.any():
            world.put_workers(plane, slot, rows[:, stays])
    usable = world.inventory.free_milli() == WHOLE
    for job in changed:
        slot, whole = int(puzzle.slots[job]), int(puzzle.whole[job])
        for node, workers in zip(puzzle.nodes, packed[job], strict=True):
            here = world.inventory.devices_of(int(node))
            lacks = int(workers) - int((plane.owner[here] == slot).sum()) // whole
            if lacks <= 0:
                continue
            free = here[usable[here] & (plane.owner[here] == FREE)]
            free = free[world.inventory.type_of[free] == puzzle.gpu_type]
            late = (held.owner[free] != FREE) & (held.owner[free] != slot)
            rows = np.zeros((6, lacks * whole), np.int64)
            rows[SLOT], rows[NODE], rows[MILLI] = slot, node, WHOLE
            rows[DEVICE] = np.sort(free[np.argsort(late, kind="stable")[: lacks * whole]])
            rows[INDEX] = np.repeat(movers[job][:lacks], whole)
            movers[job] = movers[job][lacks:]
            world.put_workers(plane, slot, rows)
