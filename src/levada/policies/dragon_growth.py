"""More workers for jobs that run: beside their servers first, then where they have workers, then best fit."""

from __future__ import annotations

from levada.policies.dragon_board import Board
from levada.policies.dragon_cycle import Cycle
from levada.policies.dragon_gang import Gang, Spot, elsewhere


def grow(cycle: Cycle, rows: list[int], owed: dict[int, int], *, everybody: bool) -> bool:
    """Gives jobs back what they lost to serving pods and then, to *everybody*, what is free; whether anything grew.

    *rows* come in order of admission. A job that fits nowhere takes nothing from later ones. What is given back leaves
    *owed*.
    """
    full: set[Gang] = set()
    grew = False
    for row in rows:
        debt = owed.get(row, 0)
        if debt > 0:
            given = add(cycle, row, debt, full)
            owed[row] = debt - given
            grew = grew or given > 0
    if everybody:
        for row in rows:
            given = add(cycle, row, cycle.max[row] - int(cycle.count[row]), full)
            owed[row] = max(0, owed.get(row, 0) - given)
            grew = grew or given > 0
    return grew


def add(cycle: Cycle, row: int, most: int, full: set[Gang]) -> int:
    """Gives a running job up to *most* workers more; how many it got. Shapes that fit nowhere go into *full*."""
    gang, gpu_type = cycle.gang(row), int(cycle.type[row])
    want = min(most, cycle.affordable(gang, gpu_type))
    want -= want % cycle.step[row] if cycle.count[row] >= cycle.min[row] else 0
    if want <= 0 or gang in full:
        return 0
    spots = _spots(cycle.now, gang, gpu_type, want, _own_nodes(cycle, row))
    found = sum(spot.workers for spot in spots)
    if not found:
        full.add(gang)
    size = cycle.allowed_size(row, int(cycle.count[row]) + found)
    give = size - int(cycle.count[row])
    if give <= 0:
        return 0
    kept: list[Spot] = []
    for spot in spots:
        stays = min(spot.workers, give - sum(other.workers for other in kept))
        if stays:
            kept.append(spot._replace(workers=stays))
    cycle.grow(row, kept)
    return give


def _own_nodes(cycle: Cycle, row: int) -> list[int]:
    """Nodes of a job: those of its servers first, then those of its workers by index."""
    members = cycle.crew.members(row)
    nodes = cycle.crew.node[members.start : members.stop].tolist()
    gone = cycle.gone[members.start : members.stop].tolist()
    return list(dict.fromkeys(node for node, left in zip(nodes, gone, strict=True) if not left))


def _spots(board: Board, gang: Gang, gpu_type: int, want: int, own: list[int]) -> list[Spot]:
    worker, spots = gang.worker, []
    if worker.devices and board.idle[gpu_type] < worker.devices:
        return []
    for node in own:
        room = min(want, board.room_at(node, worker, gpu_type))
        if room:
            spots.append(Spot(node, 0, room))
            want -= room
        if not want:
            return spots
    return spots + [Spot(node, 0, workers) for node, workers in elsewhere(board, worker, gpu_type, want, own)]
