"""`kernels.place` in numpy: one job at a time, all its pools at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from levada.kernels.arrays import Bools, Ints
from levada.kernels.spread import spread

_FREE = -1
#: Shapes of workers whose rooms are remembered; a bound for memory, no result depends on it.
_SHAPES = 64


def _devices_by_job(owner: Ints, slot: Ints) -> list[Ints]:
    """The devices of each job in *slot*, ascending."""
    row = np.full(int(slot.max()) + 2, -1, np.int64)
    row[slot] = np.arange(len(slot))
    known = (owner >= 0) & (owner < len(row) - 1)
    devices = known.nonzero()[0]
    of = row[owner[devices]]
    devices, of = devices[of >= 0], of[of >= 0]
    order = np.argsort(of, kind="stable")
    return np.split(devices[order], np.cumsum(np.bincount(of, minlength=len(slot)))[:-1])


def shed(
    owner: Ints,
    index: Ints,
    cpu_used: Ints,
    memory_used: Ints,
    held: Ints,
    node_of: Ints,
    slot: Ints,
    keep: Ints,
    whole: Ints,
    cpu: Ints,
    memory: Ints,
    highest_first: bool,
) -> None:
    if not len(slot):
        return
    for j, mine in enumerate(_devices_by_job(owner, slot)):
        give = len(mine) // int(whole[j]) - int(keep[j])
        if give <= 0:
            continue
        # One row per worker: its first device.
        indices, first = np.unique(index[mine], return_index=True)
        nodes = node_of[mine[first]]
        if keep[j] == 0:
            owner[mine] = _FREE
            gone = np.arange(len(indices))
        else:
            if highest_first:
                order = np.arange(len(indices))[::-1]
            else:
                home = nodes[0] if indices[0] == 0 else -1
                companions = np.bincount(node_of[mine])[nodes]
                runs = held[mine[first]] == slot[j]
                order = np.lexsort((-indices, -nodes, companions, nodes == home, runs))
            gone = order[indices[order] > 0][:give]
            owner[mine[np.isin(index[mine], indices[gone])]] = _FREE
        np.subtract.at(cpu_used, nodes[gone], cpu[j])
        np.subtract.at(memory_used, nodes[gone], memory[j])


class _Shape(NamedTuple):
    """What one worker takes, and of which type."""

    kind: int
    whole: int
    cpu: int
    memory: int


class _Board:
    """The plane that is changed, and what is free of each pool and node. Remembers the touched nodes, in order."""

    def __init__(
        self,
        owner: Ints,
        index: Ints,
        used: tuple[Ints, Ints],
        left: tuple[Ints, Ints],
        held: Ints,
        usable: Bools,
        pools: tuple[Ints, Ints, Ints],
    ) -> None:
        self.owner, self.index, self.used, self.left, self.held, self.usable = owner, index, used, left, held, usable
        self.start, self.stop, self.pool_node = pools
        self.pool_of = np.repeat(np.arange(len(self.start)), self.stop - self.start)
        ready = usable & (owner == _FREE)
        self.free = np.bincount(self.pool_of[ready], minlength=len(self.start))
        self.now = np.bincount(self.pool_of[ready & (held == _FREE)], minlength=len(self.start))
        self.touched: list[int] = []

    def pick(self, pool: int, count: int, job: int) -> Ints:
        """So many free devices of *pool*, ascending; those come first that nobody else has to leave."""
        first, last = int(self.start[pool]), int(self.stop[pool])
        here = (self.usable[first:last] & (self.owner[first:last] == _FREE)).nonzero()[0] + first
        if count < len(here):
            late = (self.held[here] != _FREE) & (self.held[here] != job)
            here = np.sort(here[np.argsort(late, kind="stable")[:count]])
        return here

    def take(self, devices: Ints, job: int, indices: Ints, shape: _Shape) -> None:
        """Gives *devices* of one pool to the workers *indices* of a job, neighbours to the same worker."""
        self.owner[devices] = job
        self.index[devices] = np.repeat(indices, shape.whole)
        pool = int(self.pool_of[devices[0]])
        node = int(self.pool_node[pool])
        self.free[pool] -= len(devices)
        self.now[pool] -= int(np.count_nonzero(self.held[devices] == _FREE))
        for used, left, each in zip(self.used, self.left, (shape.cpu, shape.memory), strict=True):
            used[node] += len(indices) * each
            left[node] -= len(indices) * each
        self.touched.append(node)

    def has_cores(self, node: int, shape: _Shape) -> bool:
        """Whether cores and memory of a node suffice for one more worker."""
        return all(not each or left[node] >= each for left, each in zip(self.left, shape[2:], strict=True))


class _Rooms:
    """How many workers of one shape each pool of its type could take (`room`), and at once (`now`)."""

    def __init__(self, board: _Board, pools: Ints, rack: Ints, zone: Ints, shape: _Shape) -> None:
        self.board, self.pools, self.shape = board, pools, shape
        self.nodes = board.pool_node[pools]
        self.racks, self.zones = rack[self.nodes], zone[self.nodes]
        self.room, self.now = self._count(slice(None))
        self.position = np.full(len(board.left[0]), -1, np.int64)
        self.position[self.nodes] = np.arange(len(pools))
        self.seen = len(board.touched)

    def refresh(self) -> None:
        """Brings the rooms up to date: only nodes that were touched since can have changed."""
        if self.seen < len(self.board.touched):
            at = self.position[self.board.touched[self.seen :]]
            at = at[at >= 0]
            self.room[at], self.now[at] = self._count(at)
            self.seen = len(self.board.touched)

    def _count(self, at: Ints | slice) -> tuple[Ints, Ints]:
        pools, nodes, board, shape = self.pools[at], self.nodes[at], self.board, self.shape
        room = board.free[pools] // shape.whole
        for left, each in zip(board.left, (shape.cpu, shape.memory), strict=True):
            if each > 0:
                room = np.minimum(room, np.maximum(left[nodes] // each, 0))
        return room, np.minimum(room, board.now[pools] // shape.whole)

    def near(self, devices: Ints) -> tuple[list[int], tuple[int, int]]:
        """The pools where a job with these devices is, most of it first; and the rack and zone of the first."""
        if not len(devices):
            return [], (-1, -1)
        own = np.bincount(self.position[self.board.pool_node[self.board.pool_of[devices]]], minlength=len(self.pools))
        near = own.nonzero()[0]
        near = near[np.argsort(-own[near], kind="stable")]
        return near.tolist(), (int(self.racks[near[0]]), int(self.zones[near[0]]))


def seat(
    owner: Ints,
    index: Ints,
    cpu_used: Ints,
    memory_used: Ints,
    cpu_free: Ints,
    memory_free: Ints,
    held: Ints,
    held_index: Ints,
    usable: Bools,
    pool_start: Ints,
    pool_stop: Ints,
    pool_node: Ints,
    pool_type: Ints,
    rack: Ints,
    zone: Ints,
    slot: Ints,
    gpu_type: Ints,
    want: Ints,
    least: Ints,
    step: Ints,
    whole: Ints,
    cpu: Ints,
    memory: Ints,
) -> Ints:
    seated = np.zeros(len(slot), np.int64)
    if not len(slot):
        return seated
    left = (cpu_free - cpu_used, memory_free - memory_used)
    pools = (pool_start, pool_stop, pool_node)
    board = _Board(owner, index, (cpu_used, memory_used), left, held, usable, pools)
    pools_of_type = {int(t): (pool_type == t).nonzero()[0] for t in np.unique(gpu_type)}
    known: dict[_Shape, _Rooms] = {}
    owned = _devices_by_job(owner, slot)
    left_behind = _devices_by_job(np.where((owner == _FREE) & usable, held, _FREE), slot)
    shapes = np.stack([gpu_type, whole, cpu, memory], axis=1).tolist()
    sizes = np.stack([want, least, step], axis=1).tolist()
    for j, (job, mine, behind) in enumerate(zip(slot.tolist(), owned, left_behind, strict=True)):
        shape = _Shape(*shapes[j])
        most, fewest, stride = sizes[j]
        have = len(mine) // shape.whole
        size = _allowed(most, fewest, stride)
        seated[j] = have
        if size <= have:
            continue
        rooms = known.get(shape)
        if rooms is None:
            if len(known) == _SHAPES:
                known.clear()
            rooms = known[shape] = _Rooms(board, pools_of_type[shape.kind], rack, zone, shape)
        rooms.refresh()
        size = min(size, _allowed(have + int(rooms.room.sum()), fewest, stride))
        if size <= have:
            continue
        seated[j] = size
        if len(behind):
            behind = behind[(owner[behind] == _FREE) & (pool_type[board.pool_of[behind]] == shape.kind)]
            back = _take_back(board, job, shape, mine, behind, held_index, size - have)
            mine = np.concatenate([mine, back])
            rooms.refresh()
        used = index[mine]
        near, home = rooms.near(mine)
        need = size - len(mine) // shape.whole
        order, take = spread(rooms.room, rooms.now, need, near, rooms.racks, rooms.zones, home)
        spare = _spare(used, need)
        given = 0
        for at, workers in zip(order, take, strict=True):
            devices = board.pick(int(rooms.pools[at]), workers * shape.whole, job)
            board.take(devices, job, spare[given : given + workers], shape)
            given += workers
    return seated


def _allowed(size: int, least: int, step: int) -> int:
    """The largest size up to *size* that the job may have; 0 if none."""
    return least + (size - least) // step * step if size >= least else 0


def _take_back(board: _Board, job: int, shape: _Shape, mine: Ints, behind: Ints, held_index: Ints, need: int) -> Ints:
    """Gives up to *need* workers that still run on the free devices *behind* back to their job, with their index.

    By index; only whole workers of one pool, and none whose index the job has given away. Their devices.
    """
    ranked = behind[np.argsort(held_index[behind], kind="stable")]
    runs = np.split(ranked, (np.diff(held_index[ranked]) != 0).nonzero()[0] + 1)
    back: list[Ints] = [ranked[:0]]
    in_use = set(board.index[mine].tolist())
    for devices in runs:
        if len(back) > need or len(devices) != shape.whole:
            continue
        pool = board.pool_of[devices[0]]
        number = int(held_index[devices[0]])
        if pool != board.pool_of[devices[-1]] or number in in_use:
            continue
        if board.has_cores(int(board.pool_node[pool]), shape):
            board.take(devices, job, np.array([number]), shape)
            back.append(devices)
    return np.concatenate(back)


def _spare(used: Ints, count: int) -> Ints:
    """The *count* smallest indices that are not in *used*."""
    if not len(used):
        return np.arange(count)
    free = np.ones(len(used) + count, bool)
    free[used[used < len(free)]] = False
    return free.nonzero()[0][:count]
