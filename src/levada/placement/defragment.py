"""Defragmentation: move workers so that jobs span fewer nodes.

Or so that a pending job fits, if that pays.

For each job on more nodes than it needs, and each pending job, a few nodes are repacked in two ways: from scratch, with
the packed nodes then mapped to real ones so that most workers stay (a maximum matching among pairs with sufficient
capacity); and with all jobs staying that are not in the way. The better result is used if its gain exceeds its cost and
its moves are within the budget. Only jobs with whole GPUs and without parameter servers are moved.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.assignment import FREE, Assignment
from levada.core.types import WHOLE, Bools, Floats, Ints
from levada.placement.general import is_general
from levada.placement.repack import Repacking, RepackRequest, rearrange
from levada.tables.cluster_state import ClusterState

#: Most nodes that are repacked together; the cost of the matching is cubic in their number.
_MOST_NODES = 48
#: Nodes with free capacity that are considered besides those of the job.
_MORE_NODES = 3
#: Most jobs of either kind per call.
_MOST_JOBS = 32


class FragmentedJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Pending jobs that do not fit although enough devices are free, with their size and its worth."""

    slots: Ints
    gpu_type: Ints
    count: Ints
    worth: Floats


NO_JOBS = FragmentedJobs(
    slots=np.zeros(0, np.int64), gpu_type=np.zeros(0, np.int64), count=np.zeros(0, np.int64), worth=np.zeros(0)
)


def defragment(
    world: ClusterState,
    plane: Assignment,
    *,
    budget: int,
    frozen: Bools,
    cost: Floats,
    gain: Floats,
    waiting: FragmentedJobs = NO_JOBS,
) -> Assignment | None:
    """A less fragmented assignment that moves at most *budget* running workers, or None if nothing pays.

    Per slot: *frozen* jobs stay; *cost* is that of interrupting a running job, *gain* that of one node (or rack, or
    zone) fewer, both in the unit of `FragmentedJobs.worth`. Moving a worker that is not held where *plane* has it costs
    nothing, because it does not run yet. Jobs in *waiting* that fit have all their workers in the result, others none.
    """
    defragmenter = _Defragmenter(world, plane, frozen, cost, gain, waiting)
    requests = defragmenter.split_jobs() + defragmenter.waiting_jobs()
    left = budget
    # All requests together first, then one by one.
    for batch in ([requests] if len(requests) > 1 else []) + [[request] for request in requests]:
        group = defragmenter.around(batch)
        if group is not None:
            left -= defragmenter.improve(group, left)
    return defragmenter.plane if defragmenter.changed else None


class _Group(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes to be repacked together, and the requests behind it."""

    nodes: Ints
    gpu_type: int
    requests: tuple[RepackRequest, ...]


class _Defragmenter:
    """The assignment while it is improved, with costs and gains."""

    def __init__(
        self, world: ClusterState, plane: Assignment, frozen: Bools, cost: Floats, gain: Floats, waiting: FragmentedJobs
    ) -> None:
        self.world, self.plane, self.cost, self.gain, self.waiting = world, plane, cost, gain, waiting
        self.changed = False
        inventory = world.inventory
        self.usable = inventory.free_milli() == WHOLE
        overused = (inventory.free_cpu() < plane.cpu) | (inventory.free_memory() < plane.memory)
        self.closed = overused | ~inventory.usable_nodes
        self.fixed = frozen | is_general(world, np.arange(world.table.capacity))
        on_closed = plane.owner[(plane.owner >= 0) & (~self.usable | self.closed[inventory.node_of])]
        self.fixed[on_closed] = True

    def split_jobs(self) -> list[RepackRequest]:
        """Requests of movable jobs on more nodes than they need, largest gain first."""
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
            RepackRequest(slot=slot, gpu_type=int(gpu_type[slot]), nodes=tuple(node_of[slot_of == slot].tolist()))
            for slot in slots[order].tolist()
        ]

    def _fewest(self, slots: Ints, gpu_type: Ints, gpus: Ints) -> Ints:
        """The number of nodes that each job would need on an empty cluster."""
        inventory = self.world.inventory
        whole = self.world.table.milli[slots] // WHOLE
        fewest = np.zeros(len(slots), np.int64)
        classes = self.world.table.node_class[slots]
        for of_type, per_worker, node_class in np.unique(np.stack([gpu_type, whole, classes]), axis=1).T:
            rows = (gpu_type == of_type) & (whole == per_worker) & (classes == node_class)
            devices = self.usable & (inventory.type_of == of_type) & inventory.eligible[node_class][inventory.node_of]
            fits = np.sort(np.bincount(inventory.node_of[devices]) // per_worker)[::-1]
            fewest[rows] = np.searchsorted(np.cumsum(fits), gpus[rows] // per_worker) + 1
        return fewest

    def waiting_jobs(self) -> list[RepackRequest]:
        """Requests of pending jobs, largest worth first."""
        waiting, table = self.waiting, self.world.table
        plain = ~is_general(self.world, waiting.slots)
        order = np.lexsort((table.number[waiting.slots], -waiting.worth))
        return [
            RepackRequest(
                slot=int(waiting.slots[row]),
                gpu_type=int(waiting.gpu_type[row]),
                count=int(waiting.count[row]),
                worth=float(waiting.worth[row]),
            )
            for row in order[plain[order]][:_MOST_JOBS]
        ]

    def around(self, requests: list[RepackRequest]) -> _Group | None:
        """The nodes of *requests* like the first (GPU type and node class), and those with the most free devices."""
        inventory, table, gpu_type = self.world.inventory, self.world.table, requests[0].gpu_type
        classes, node_class = table.node_class, table.node_class[requests[0].slot]
        requests = [
            request for request in requests if request.gpu_type == gpu_type and classes[request.slot] == node_class
        ]
        free = np.bincount(inventory.node_of[self._free(gpu_type)], minlength=len(inventory.nodes))
        free[self.closed | ~inventory.eligible[node_class]] = 0
        more, needed = _MORE_NODES, sum(request.count * int(table.milli[request.slot]) // WHOLE for request in requests)
        freest = np.argsort(-free, kind="stable")
        more += int(np.searchsorted(np.cumsum(free[freest]), needed)) if needed else 0
        nodes = np.union1d(
            np.array([node for request in requests for node in request.nodes], np.int64),
            freest[:more][free[freest[:more]] > 0],
        )
        nodes = nodes[~self.closed[nodes]]
        if not 0 < len(nodes) <= _MOST_NODES:
            return None
        return _Group(nodes=nodes, gpu_type=gpu_type, requests=tuple(requests))

    def _free(self, gpu_type: int) -> Ints:
        return (self.usable & (self.plane.owner == FREE) & (self.world.inventory.type_of == gpu_type)).nonzero()[0]

    def improve(self, group: _Group, budget: int) -> int:
        """Repack the group if that pays; returns the number of moved running workers."""
        repacking = Repacking(self.world, self.plane, group.nodes, group.gpu_type, self.fixed, group.requests)
        best, best_net, best_moves = None, 0.0, 0
        for packed in (repacking.pack(staying=True), repacking.bind(repacking.pack(staying=False))):
            if packed is None:
                continue
            net, moves = repacking.value(packed, self.gain, self.cost)
            if moves <= budget and (net, -moves) > (best_net, -best_moves) and net > 0:
                best, best_net, best_moves = packed, net, moves
        if best is None:
            return 0
        if not self.changed:
            self.plane, self.changed = self.plane.copy(), True
        rearrange(repacking, best, self.plane)
        return best_moves
