"""Where a whole job would stand on a board: parameter servers with as many workers as possible, few nodes, best fit.

As DRAGON places: one node for everything where there is one; otherwise the node that holds most of the job, servers
first, and then others. Where it took any that fits, this takes the tightest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from levada.core.types import CPU_TYPE, Bools, Ints
from levada.policies.dragon_board import Board, Demand

#: Above every tightness.
_LOOSEST = np.iinfo(np.int64).max


class Gang(NamedTuple):
    """The shape of a job: its servers, one of its workers, and the types it may run on, preferred first.

    A job of *any* type prefers the one with the largest free part; its types stand in the order of the cluster then.
    """

    servers: int
    server_cpu: int
    server_memory: int
    worker: Demand
    types: tuple[int, ...]
    any: bool = False


class Spot(NamedTuple):
    """So many of a job's processes on one node."""

    node: int
    servers: int
    workers: int


class Layout(NamedTuple):
    """Where a job would stand; no spots where its servers find no room."""

    gpu_type: int
    spots: tuple[Spot, ...]

    @property
    def workers(self) -> int:
        """How many workers find room."""
        return sum(spot.workers for spot in self.spots)

    def cut(self, workers: int) -> Layout:
        """The same with only the first *workers* workers."""
        kept = []
        for spot in self.spots:
            stays = min(spot.workers, workers)
            workers -= stays
            if stays or spot.servers:
                kept.append(spot._replace(workers=stays))
        return Layout(self.gpu_type, tuple(kept))


NOWHERE = Layout(-1, ())


def lay_out(board: Board, gang: Gang, want: int, least: int) -> Layout:
    """Places for up to *want* workers on the first type where *least* fit; else the largest that falls short."""
    best = NOWHERE
    for gpu_type in by_free_part(board, gang):
        found = _on_type(board, gang, want, least, gpu_type)
        if found.workers >= least:
            return found
        if found.workers > best.workers:
            best = found
    return best


def by_free_part(board: Board, gang: Gang) -> tuple[int, ...]:
    """The types of a gang, those to try first in front."""
    if not gang.any or len(gang.types) < 2:
        return gang.types
    part = board.idle / np.maximum(board.devices, 1)
    return tuple(sorted(gang.types, key=lambda gpu_type: -part[gpu_type]))


def _on_type(board: Board, gang: Gang, want: int, least: int, gpu_type: int) -> Layout:
    worker = gang.worker
    if board.idle[gpu_type] < least * worker.devices:
        return NOWHERE
    cpu = gang.servers * gang.server_cpu + want * worker.cpu
    memory = gang.servers * gang.server_memory + want * worker.memory
    holds_all = board.holds(cpu, memory, worker, gpu_type, want)
    node = tightest(board, holds_all, worker, gpu_type, want)
    if node >= 0:
        return Layout(gpu_type, (Spot(node, gang.servers, want),))
    return Layout(gpu_type, tuple(_on_several(board, gang, want, gpu_type)))


def tightest(board: Board, among: Bools, worker: Demand, gpu_type: int, workers: int) -> int:
    """The node that best fit takes, or -1: fewest devices newly cut up, smallest hole, least free beside."""
    many = int(np.count_nonzero(among))
    if not many:
        return -1
    if not worker.is_part and many * 4 > len(among):
        return int(np.where(among, board.tightness, _LOOSEST).argmin())  # cheaper than to pick out so many
    nodes = among.nonzero()[0]
    if not worker.is_part:
        return int(nodes[board.tightness[nodes].argmin()])
    shares = board.shares(worker, gpu_type)
    opened = np.maximum(workers - shares.on_open[nodes], 0)
    nodes = nodes[opened == opened.min()]
    holes = shares.hole[nodes]
    nodes = nodes[holes == holes.min()]
    return int(nodes[board.tightness[nodes].argmin()])


def _on_several(board: Board, gang: Gang, want: int, gpu_type: int) -> list[Spot]:
    """The node that holds most of the job first, then those with most room; no spots where servers find none."""
    spots = _start(board, gang, want, gpu_type)
    missing = want - sum(spot.workers for spot in spots)
    if spots and missing:
        more = elsewhere(board, gang.worker, gpu_type, missing, [spot.node for spot in spots])
        missing -= sum(workers for _, workers in more)
        for i, spot in enumerate(spots[:-1]):
            # Nodes of other servers come last, as in the original, which never went back to them.
            workers = min(missing, _room_beside(board, gang, spot, gpu_type))
            spots[i] = spot._replace(workers=workers)
            missing -= workers
        spots += [Spot(node, 0, workers) for node, workers in more]
    return spots


def _start(board: Board, gang: Gang, want: int, gpu_type: int) -> list[Spot]:
    """All servers, with as many workers as fit beside the last of them."""
    servers, worker = gang.servers, gang.worker
    if worker.devices:
        for workers in range(min(want, board.largest(worker, gpu_type)), -1, -1):
            cpu = servers * gang.server_cpu + workers * worker.cpu
            memory = servers * gang.server_memory + workers * worker.memory
            if servers or workers:
                among = board.holds(cpu, memory, worker, gpu_type, workers)
                node = tightest(board, among, worker, gpu_type, workers)
                if node >= 0:
                    return [Spot(node, servers, workers)]
    room = np.minimum(board.room(worker, gpu_type, servers, gang.server_cpu, gang.server_memory), want)
    if not servers:
        most = int(room.max(initial=0))
        return [Spot(tightest(board, room == most, worker, gpu_type, most), 0, most)] if most else []
    server_room = _server_room(board, gang)
    score = server_room + room  # beside servers that do not all fit there is no room
    most = int(score.max(initial=0))
    if most == 0:
        return []
    start = tightest(board, score == most, worker, gpu_type, int(room.max()))
    spots = _seat_servers(gang, board, start, server_room, gpu_type)
    if spots:
        beside = spots[-1]
        spots[-1] = beside._replace(workers=min(want, _room_beside(board, gang, beside, gpu_type)))
    return spots


def _server_room(board: Board, gang: Gang) -> Ints:
    """Per node how many of the servers fit."""
    server = Demand(gang.server_cpu, gang.server_memory)
    if gang.servers == 1:
        return board.holds(server.cpu, server.memory, server, CPU_TYPE, 1).astype(np.int64)
    return np.minimum(board.room(server, CPU_TYPE), gang.servers)


def _seat_servers(gang: Gang, board: Board, start: int, server_room: Ints, gpu_type: int) -> list[Spot]:
    spots = [Spot(start, int(server_room[start]), 0)]
    missing = gang.servers - spots[0].servers
    if missing:
        others = server_room.copy()
        others[start] = 0
        more = spread(board, others, missing, Demand(), gpu_type)
        spots += [Spot(node, servers, 0) for node, servers in more]
        if sum(spot.servers for spot in spots) < gang.servers:
            return []
    return spots


def _room_beside(board: Board, gang: Gang, spot: Spot, gpu_type: int) -> int:
    """How many workers fit on a node beside the servers that go there."""
    node, worker = spot.node, gang.worker
    cpu = int(board.cpu[node]) - spot.servers * gang.server_cpu
    memory = int(board.memory[node]) - spot.servers * gang.server_memory
    room = board.room_at(node, worker, gpu_type)
    if worker.cpu:
        room = min(room, cpu // worker.cpu)
    if worker.memory:
        room = min(room, memory // worker.memory)
    return max(room, 0)


def elsewhere(board: Board, worker: Demand, gpu_type: int, want: int, own: list[int]) -> list[tuple[int, int]]:
    """(node, workers) for up to *want* workers on as few nodes as possible beside those in *own*."""
    if not worker.devices:
        room = board.room(worker, gpu_type)
        room[own] = 0
        return spread(board, room, want, worker, gpu_type)
    # The same as `spread`, but a node holds only a few devices, and to compare is cheaper than to divide.
    spots: list[tuple[int, int]] = []
    used = list(own)
    size = min(want, board.largest(worker, gpu_type))
    while want and size:
        among = board.holds(size * worker.cpu, size * worker.memory, worker, gpu_type, size)
        among[used] = False
        if size == want:
            node = tightest(board, among, worker, gpu_type, want)
            nodes = [node] if node >= 0 else []
        else:
            nodes = among.nonzero()[0][: want // size].tolist()
        spots += [(node, size) for node in nodes]
        used += nodes
        want -= size * len(nodes)
        size = min(want, size - 1)
    return spots


def spread(board: Board, room: Ints, want: int, worker: Demand, gpu_type: int) -> list[tuple[int, int]]:
    """(node, workers) for up to *want* workers on as few nodes as *room* allows; the last one is the tightest."""
    spots: list[tuple[int, int]] = []
    left = np.minimum(room, want)
    while want and (most := int(left.max(initial=0))):
        if most >= want:
            spots.append((tightest(board, left >= want, worker, gpu_type, want), want))
            break
        nodes = (left == most).nonzero()[0][: want // most]
        spots += [(node, most) for node in nodes.tolist()]
        left[nodes] = 0
        want -= most * len(nodes)
    return spots
