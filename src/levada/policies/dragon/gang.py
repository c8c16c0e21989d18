"""The layout of a whole job: servers beside most workers, few nodes, best fit.

As in DRAGON: one node for everything if possible, otherwise the node that holds most of the job, servers first, and
then others. Where DRAGON takes any node that fits, this takes the tightest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from levada.core.cluster import Foreign
from levada.core.inventory import Inventory
from levada.core.types import CPU_TYPE, WHOLE, Bools, Ints
from levada.policies.dragon.capacity import Demand, FreeCapacity

#: Larger than any tightness.
_LOOSEST = np.iinfo(np.int64).max


class GangRequest(NamedTuple):
    """The request of a job: servers, resources of one worker, types by preference.

    A job of *any* type prefers the type with the largest free fraction; its types are then in the order of the cluster.
    """

    servers: int
    server_cpu: int
    server_memory: int
    worker: Demand
    types: tuple[int, ...]
    any: bool = False

    @property
    def server(self) -> Demand:
        """One of its servers."""
        return Demand(self.server_cpu, self.server_memory, node_class=self.worker.node_class)


def pod_request(inventory: Inventory, pod: Foreign) -> GangRequest:
    """The request of a serving pod: one worker and no servers."""
    if pod.milli == 0:
        types: tuple[int, ...] = (CPU_TYPE,)
    elif pod.gpu_type is not None:
        types = (inventory.types.find(pod.gpu_type),) if pod.gpu_type in inventory.types else ()
    else:
        types = tuple(range(1, len(inventory.types)))
    gpu_memory = pod.gpu_memory if pod.milli % WHOLE else 0
    node_class = inventory.classes.find(pod.node_class)
    return GangRequest(0, 0, 0, Demand(pod.cpu, pod.memory, pod.milli, gpu_memory, node_class=node_class), types)


class Spot(NamedTuple):
    """The processes of a job on one node."""

    node: int
    servers: int
    workers: int


class GangLayout(NamedTuple):
    """The nodes of a job; no spots if its servers do not fit."""

    gpu_type: int
    spots: tuple[Spot, ...]

    @property
    def workers(self) -> int:
        """The number of workers that fit."""
        return sum(spot.workers for spot in self.spots)

    def cut(self, workers: int) -> GangLayout:
        """The layout with only the first *workers* workers."""
        spots = []
        for spot in self.spots:
            stays = min(spot.workers, workers)
            workers -= stays
            if stays or spot.servers:
                spots.append(spot._replace(workers=stays))
        return GangLayout(self.gpu_type, tuple(spots))


NOWHERE = GangLayout(-1, ())


def lay_out(capacity: FreeCapacity, gang: GangRequest, want: int, least: int) -> GangLayout:
    """A layout of up to *want* workers on the first type where *least* fit.

    If they fit on none, the layout with the most workers.
    """
    best = NOWHERE
    for gpu_type in by_free_part(capacity, gang):
        layout = _on_type(capacity, gang, want, least, gpu_type)
        if layout.workers >= least:
            return layout
        if layout.workers > best.workers:
            best = layout
    return best


def by_free_part(capacity: FreeCapacity, gang: GangRequest) -> tuple[int, ...]:
    """The types of a gang in the order of preference."""
    if not gang.any or len(gang.types) < 2:
        return gang.types
    part = capacity.idle / np.maximum(capacity.devices, 1)
    return tuple(sorted(gang.types, key=lambda gpu_type: -part[gpu_type]))


def _on_type(capacity: FreeCapacity, gang: GangRequest, want: int, least: int, gpu_type: int) -> GangLayout:
    worker = gang.worker
    if capacity.idle[gpu_type] < least * worker.devices:
        return NOWHERE
    cpu = gang.servers * gang.server_cpu + want * worker.cpu
    memory = gang.servers * gang.server_memory + want * worker.memory
    holds_all = capacity.holds(cpu, memory, worker, gpu_type, want)
    node = tightest(capacity, holds_all, worker, gpu_type, want)
    if node >= 0:
        return GangLayout(gpu_type, (Spot(node, gang.servers, want),))
    return GangLayout(gpu_type, tuple(_on_several(capacity, gang, want, gpu_type)))


def tightest(capacity: FreeCapacity, among: Bools, worker: Demand, gpu_type: int, workers: int) -> int:
    """The best-fit node, or -1: fewest new fractions, smallest hole, least free."""
    many = int(np.count_nonzero(among))
    if not many:
        return -1
    if not worker.is_part and many * 4 > len(among):
        return int(np.where(among, capacity.tightness, _LOOSEST).argmin())  # cheaper than indexing many nodes
    nodes = among.nonzero()[0]
    if not worker.is_part:
        return int(nodes[capacity.tightness[nodes].argmin()])
    shares = capacity.shares(worker, gpu_type)
    opened = np.maximum(workers - shares.on_open[nodes], 0)
    nodes = nodes[opened == opened.min()]
    holes = shares.hole[nodes]
    nodes = nodes[holes == holes.min()]
    return int(nodes[capacity.tightness[nodes].argmin()])


def _on_several(capacity: FreeCapacity, gang: GangRequest, want: int, gpu_type: int) -> list[Spot]:
    """The node that holds most of the job, then those with most room."""
    spots = _start(capacity, gang, want, gpu_type)
    missing = want - sum(spot.workers for spot in spots)
    if spots and missing:
        more = elsewhere(capacity, gang.worker, gpu_type, missing, [spot.node for spot in spots])
        missing -= sum(workers for _, workers in more)
        for i, spot in enumerate(spots[:-1]):
            # Nodes of other servers come last; the original never uses them.
            workers = min(missing, room_beside(capacity, gang, spot, gpu_type))
            spots[i] = spot._replace(workers=workers)
            missing -= workers
        spots += [Spot(node, 0, workers) for node, workers in more]
    return spots


def _start(capacity: FreeCapacity, gang: GangRequest, want: int, gpu_type: int) -> list[Spot]:
    """All servers, with as many workers as fit beside the last of them."""
    servers, worker = gang.servers, gang.worker
    if worker.devices:
        for workers in range(min(want, capacity.largest(worker, gpu_type)), -1, -1):
            cpu = servers * gang.server_cpu + workers * worker.cpu
            memory = servers * gang.server_memory + workers * worker.memory
            if servers or workers:
                among = capacity.holds(cpu, memory, worker, gpu_type, workers)
                node = tightest(capacity, among, worker, gpu_type, workers)
                if node >= 0:
                    return [Spot(node, servers, workers)]
    room = np.minimum(capacity.room(worker, gpu_type, servers, gang.server_cpu, gang.server_memory), want)
    if not servers:
        most = int(room.max(initial=0))
        return [Spot(tightest(capacity, room == most, worker, gpu_type, most), 0, most)] if most else []
    server_room = _server_room(capacity, gang)
    score = server_room + room  # no room unless all servers fit
    most = int(score.max(initial=0))
    if most == 0:
        return []
    start = tightest(capacity, score == most, worker, gpu_type, int(room.max()))
    spots = _place_servers(gang, capacity, start, server_room, gpu_type)
    if spots:
        beside = spots[-1]
        spots[-1] = beside._replace(workers=min(want, room_beside(capacity, gang, beside, gpu_type)))
    return spots


def _server_room(capacity: FreeCapacity, gang: GangRequest) -> Ints:
    """Per node how many of the servers fit."""
    server = gang.server
    if gang.servers == 1:
        return capacity.holds(server.cpu, server.memory, server, CPU_TYPE, 1).astype(np.int64)
    return np.minimum(capacity.room(server, CPU_TYPE), gang.servers)


def _place_servers(
    gang: GangRequest, capacity: FreeCapacity, start: int, server_room: Ints, gpu_type: int
) -> list[Spot]:
    spots = [Spot(start, int(server_room[start]), 0)]
    missing = gang.servers - spots[0].servers
    if missing:
        others = server_room.copy()
        others[start] = 0
        more = spread(capacity, others, missing, Demand(), gpu_type)
        spots += [Spot(node, servers, 0) for node, servers in more]
        if sum(spot.servers for spot in spots) < gang.servers:
            return []
    return spots


def room_beside(capacity: FreeCapacity, gang: GangRequest, spot: Spot, gpu_type: int) -> int:
    """How many workers fit on a node beside the servers placed there."""
    node, worker = spot.node, gang.worker
    cpu = int(capacity.cpu[node]) - spot.servers * gang.server_cpu
    memory = int(capacity.memory[node]) - spot.servers * gang.server_memory
    room = capacity.room_at(node, worker, gpu_type)
    if worker.cpu:
        room = min(room, cpu // worker.cpu)
    if worker.memory:
        room = min(room, memory // worker.memory)
    return max(room, 0)


def elsewhere(
    capacity: FreeCapacity, worker: Demand, gpu_type: int, want: int, own: list[int]
) -> list[tuple[int, int]]:
    """(node, workers) for up to *want* workers on the fewest nodes outside *own*."""
    if not worker.devices:
        room = capacity.room(worker, gpu_type)
        room[own] = 0
        return spread(capacity, room, want, worker, gpu_type)
    # Equivalent to `spread`, but faster: a node has few devices, and comparing is cheaper than dividing.
    spots: list[tuple[int, int]] = []
    used = list(own)
    size = min(want, capacity.largest(worker, gpu_type))
    while want and size:
        among = capacity.holds(size * worker.cpu, size * worker.memory, worker, gpu_type, size)
        among[used] = False
        if size == want:
            node = tightest(capacity, among, worker, gpu_type, want)
            nodes = [node] if node >= 0 else []
        else:
            nodes = among.nonzero()[0][: want // size].tolist()
        spots += [(node, size) for node in nodes]
        used += nodes
        want -= size * len(nodes)
        size = min(want, size - 1)
    return spots


def spread(capacity: FreeCapacity, room: Ints, want: int, worker: Demand, gpu_type: int) -> list[tuple[int, int]]:
    """(node, workers) for up to *want* workers on the fewest nodes with *room*.

    The last node is the tightest that fits.
    """
    spots: list[tuple[int, int]] = []
    left = np.minimum(room, want)
    while want and (most := int(left.max(initial=0))):
        if most >= want:
            spots.append((tightest(capacity, left >= want, worker, gpu_type, want), want))
            break
        nodes = (left == most).nonzero()[0][: want // most]
        spots += [(node, most) for node in nodes.tolist()]
        left[nodes] = 0
        want -= most * len(nodes)
    return spots
