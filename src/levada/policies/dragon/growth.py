"""Grow running jobs: beside their servers, beside their workers, then best fit."""

from __future__ import annotations

from levada.policies.dragon.capacity import FreeCapacity
from levada.policies.dragon.cycle import Cycle
from levada.policies.dragon.gang import GangLayout, GangRequest, Spot, elsewhere


def grow(cycle: Cycle, rows: list[int], owed: dict[int, int], *, all_jobs: bool) -> bool:
    """Return workers lost to serving pods, then grow all jobs; whether any grew.

    *rows* are in order of admission. A job that fits nowhere takes nothing from later ones. Returned workers are
    removed from *owed*.
    """
    full: set[GangRequest] = set()
    grew = False
    for row in rows:
        debt = owed.get(row, 0)
        if debt > 0:
            added = add(cycle, row, debt, full)
            owed[row] = debt - added
            grew = grew or added > 0
    if all_jobs:
        for row in rows:
            added = add(cycle, row, cycle.max[row] - int(cycle.count[row]), full)
            owed[row] = max(0, owed.get(row, 0) - added)
            grew = grew or added > 0
    return grew


def add(cycle: Cycle, row: int, most: int, full: set[GangRequest]) -> int:
    """Add up to *most* workers to a running job; the number added.

    Requests that fit nowhere are added to *full*.
    """
    gang, gpu_type = cycle.gang(row), int(cycle.type[row])
    want = min(most, cycle.affordable(gang, gpu_type))
    want -= want % cycle.step[row] if cycle.count[row] >= cycle.min[row] else 0
    if want <= 0 or gang in full:
        return 0
    spots = _spots(cycle.now, gang, gpu_type, want, _own_nodes(cycle, row))
    layout = GangLayout(gpu_type, tuple(spots))
    if not layout.workers:
        full.add(gang)
    added = cycle.allowed_size(row, int(cycle.count[row]) + layout.workers) - int(cycle.count[row])
    if added <= 0:
        return 0
    cycle.grow(row, list(layout.cut(added).spots))
    return added


def _own_nodes(cycle: Cycle, row: int) -> list[int]:
    """The nodes of a job: those of its servers first, then of its workers by index."""
    members = cycle.processes.members(row)
    nodes = cycle.processes.node[members.start : members.stop].tolist()
    gone = cycle.gone[members.start : members.stop].tolist()
    return list(dict.fromkeys(node for node, left in zip(nodes, gone, strict=True) if not left))


def _spots(capacity: FreeCapacity, gang: GangRequest, gpu_type: int, want: int, own: list[int]) -> list[Spot]:
    worker, spots = gang.worker, []
    if worker.devices and capacity.idle[gpu_type] < worker.devices:
        return []
    for node in own:
        room = min(want, capacity.room_at(node, worker, gpu_type))
        if room:
            spots.append(Spot(node, 0, room))
            want -= room
        if not want:
            return spots
    return spots + [Spot(node, 0, workers) for node, workers in elsewhere(capacity, worker, gpu_type, want, own)]
