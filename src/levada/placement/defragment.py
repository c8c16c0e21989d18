"""Moving workers so that jobs are on fewer nodes, or a job that waits finds room in one piece, where that pays.

Around each job that is on more nodes than it needs, or that waits, a few nodes are packed anew, in two ways: afresh,
after which the packed nodes are given the names of real ones so that most workers stay (a maximum matching among the
pairs that have the capacity); and with everybody staying who is not in the way. The better one counts if its gain is
above its cost and within the budget. Only jobs of whole GPUs without parameter servers are moved; others stand firm.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.plane import FREE, Plane
from levada.core.types import WHOLE, Bools, Floats, Ints
from levada.placement.general import is_general
from levada.placement.repack import Puzzle, Wish, rearrange
from levada.tables.world import World

#: Nodes that are packed together at most; the matching takes their number to the third power.
_MOST_NODES = 48
#: Nodes with much room that are looked at besides those that a job is on.
_MORE_NODES = 3
#: Jobs of either kind that are looked at per call.
_MOST_JOBS = 32


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that find no place though enough is free, with the size they should have and what it is worth."""

    slots: Ints
    gpu_type: Ints
    count: Ints
    worth: Floats


NOBODY = Waiting(
    slots=np.zeros(0, np.int64), gpu_type=np.zeros(0, np.int64), count=np.zeros(0, np.int64), worth=np.zeros(0)
)


def defragment(
    world: World,
    plane: Plane,
    *,
    budget: int,
    frozen: Bools,
    cost: Floats,
    gain: Floats,
    waiting: Waiting = NOBODY,
) -> Plane | None:
    """A better plane, or None where nothing pays; at most *budget* running workers are on another node in it.

    Per slot: *frozen* jobs stay where they are; *cost* is what an interruption costs a running job, *gain* what it is
    worth to be on one node (or rack, or zone) fewer, both in the unit of `Waiting.worth`. A worker that is not held
    where *plane* has it does not run there, and moving it costs nothing. Of the jobs that wait those that found room
    have their count of workers on the new plane, the others none.
    """
    desk = _Desk(world, plane, frozen, cost, gain, waiting)
    wishes = desk.split_jobs() + desk.waiting_jobs()
    left = budget
    # All together first; what is left to wish for then, one by one.
    for some in ([wishes] if len(wishes) > 1 else []) + [[wish] for wish in wishes]:
        group = desk.around(some)
        if group is not None:
            left -= desk.improve(group, left)
    return desk.plane if desk.changed else None


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes to be packed together, and for whose sake."""

    nodes: Ints
    gpu_type: int
    wishes: tuple[Wish, ...]


class _Desk:
    """The plane as it gets better, and what moves are worth."""

    def __init__(self, world: World, plane: Plane, frozen: Bools, cost: Floats, gain: Floats, waiting: Waiting) -> None:
        self.world, self.plane, self.cost, self.gain, self.waiting = world, plane, cost, gain, waiting
        self.changed = False
        inventory = world.inventory
        self.usable = inventory.free_milli() == WHOLE
        overused = (inventory.free_cpu() < plane.cpu) | (inventory.free_memory() < plane.memory)
        self.closed = overused | ~inventory.usable_nodes
        self.fixed = frozen | is_general(world, np.arange(world.table.capacity))
        on_closed = plane.owner[(plane.owner >= 0) & (~self.usable | self.closed[inventory.node_of])]
        self.fixed[on_closed] = True

    def split_jobs(self) -> list[Wish]:
        """Movable jobs on more nodes than the cluster's shape asks for; those with most to gain first."""
        inventory, table, owner = self.world.inventory, self.world.table, self.plane.owner
        devices = ((owner >= 0) & ~self.fixed[owner]).nonzero()[0]
        gpus = np.bincount(owner[devices], minlength=table.capacity)
        gpu_type = np.full(table.capacity, -1, np.int64)
        gpu_type[owner[devices]] = inventory.type_of[devices]
        pairs = np.unique(owner[devices].astype(np.int64) * len(inventory.nodes) + inventory.node_of[devices])
        slot_of, node_of = np.divmod(pairs, max(len(inventory.nodes), 1))
        nodes = np.bincount(slot_of, minlength=table.capacity)
        slots = (nodes > 1).nonzero()[0]
        spare = nodes[slots] - self._fewest(slots, gpu_type[slots], gpus[slots])
        slots, spare = slots[spare > 0], spare[spare > 0]
        order = np.lexsort((table.number[slots], -spare * self.gain[slots]))[:_MOST_JOBS]
        return [
            Wish(slot=slot, gpu_type=int(gpu_type[slot]), nodes=tuple(node_of[slot_of == slot].tolist()))
            for slot in slots[order].tolist()
        ]

    def _fewest(self, slots: Ints, gpu_type: Ints, gpus: Ints) -> Ints:
        """Nodes that each job would need if it were alone."""
        inventory = self.world.inventory
        whole = self.world.table.milli[slots] // WHOLE
        fewest = np.zeros(len(slots), np.int64)
        for kind, each in np.unique(np.stack([gpu_type, whole]), axis=1).T:
            alike = (gpu_type == kind) & (whole == each)
            mine = self.usable & (inventory.type_of == kind)
            room = np.sort(np.bincount(inventory.node_of[mine]) // each)[::-1]
            fewest[alike] = np.searchsorted(np.cumsum(room), gpus[alike] // each) + 1
        return fewest

    def waiting_jobs(self) -> list[Wish]:
        """The jobs that wait and could be served, those worth most first."""
        waiting, table = self.waiting, self.world.table
        plain = ~is_general(self.world, waiting.slots)
        order = np.lexsort((table.number[waiting.slots], -waiting.worth))
        return [
            Wish(
                slot=int(waiting.slots[row]),
                gpu_type=int(waiting.gpu_type[row]),
                count=int(waiting.count[row]),
                worth=float(waiting.worth[row]),
            )
            for row in order[plain[order]][:_MOST_JOBS]
        ]

    def around(self, wishes: list[Wish]) -> _Group | None:
        """The nodes that *wishes* (of one type, that of the first) are about, and those with most room besides."""
        inventory, gpu_type = self.world.inventory, wishes[0].gpu_type
        wishes = [wish for wish in wishes if wish.gpu_type == gpu_type]
        free = np.bincount(inventory.node_of[self._free(gpu_type)], minlength=len(inventory.nodes))
        free[self.closed] = 0
        more, lacks = _MORE_NODES, sum(wish.count * int(self.world.table.milli[wish.slot]) // WHOLE for wish in wishes)
        roomiest = np.argsort(-free, kind="stable")
        more += int(np.searchsorted(np.cumsum(free[roomiest]), lacks)) if lacks else 0
        nodes = np.union1d(
            np.array([node for wish in wishes for node in wish.nodes], np.int64),
            roomiest[:more][free[roomiest[:more]] > 0],
        )
        nodes = nodes[~self.closed[nodes]]
        return _Group(nodes=nodes, gpu_type=gpu_type, wishes=tuple(wishes)) if 0 < len(nodes) <= _MOST_NODES else None

    def _free(self, gpu_type: int) -> Ints:
        return (self.usable & (self.plane.owner == FREE) & (self.world.inventory.type_of == gpu_type)).nonzero()[0]

    def improve(self, group: _Group, budget: int) -> int:
        """Packs the group anew if that pays; the number of running workers that it moves."""
        puzzle = Puzzle(self.world, self.plane, group.nodes, group.gpu_type, self.fixed, group.wishes)
        best, best_net, best_moves = None, 0.0, 0
        for packed in (puzzle.pack(staying=True), puzzle.bind(puzzle.pack(staying=False))):
            if packed is None:
                continue
            net, moves = puzzle.value(packed, self.gain, self.cost)
            if moves <= budget and (net, -moves) > (best_net, -best_moves) and net > 0:
                best, best_net, best_moves = packed, net, moves
        if best is None:
            return 0
        if not self.changed:
            self.plane, self.changed = self.plane.copy(), True
        rearrange(puzzle, best, self.plane)
        return best_moves
