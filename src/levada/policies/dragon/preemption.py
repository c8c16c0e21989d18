"""Choose workers to stop for a pending job: few, and none in vain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from levada.core.types import Ints
from levada.policies.dragon.capacity import FreeCapacity
from levada.policies.dragon.cycle import Cycle
from levada.policies.dragon.gang import GangRequest, lay_out


class SpareWorkers:
    """Workers above the minimum of running jobs, in the order of preemption."""

    def __init__(self, cycle: Cycle, rank: Ints) -> None:
        self.cycle = cycle
        processes = cycle.processes
        above_min = cycle.count > cycle.snap.jobs.min
        members = (processes.removable & above_min[processes.job] & ~cycle.gone).nonzero()[0]
        keys = (
            -processes.index[members],
            processes.node[members],
            rank[processes.job[members]],
            processes.is_home[members],
        )
        #: Workers away from their servers first, then by admission of their job, node, and highest index.
        self.members: Ints = members[np.lexsort(keys)]
        #: The free capacity if all of them left: an upper bound, because jobs keep their minimum.
        self.capacity: FreeCapacity = cycle.soon.copy()
        processes.release(self.capacity, self.members)

    def could_help(self, gang: GangRequest, least: int) -> bool:
        """False if no amount of shrinking makes room."""
        within = self.cycle.within_budget(gang, least, self.members)
        return lay_out(self.capacity, within, least, least).workers >= least

    def units(self, members: Ints) -> list[Ints]:
        """See `units_of`."""
        return units_of(self.cycle, members)


def units_of(cycle: Cycle, members: Ints) -> list[Ints]:
    """Those *members* that jobs can spare, in order, grouped by steps of a job."""
    members, places = within_quota(cycle, members)
    jobs, job = cycle.snap.jobs, cycle.processes.job[members]
    step = jobs.step[job]
    if not (step > 1).any():
        return list(members[:, None])
    together: dict[tuple[int, int], list[int]] = {}
    for member, of, at, size in zip(members.tolist(), job.tolist(), places.tolist(), step.tolist(), strict=True):
        unit = together.pop((of, at // size), [])
        together[of, at // size] = [*unit, member]  # ordered by its last member
    return [np.array(unit) for (of, _), unit in together.items() if len(unit) == jobs.step[of]]


def within_quota(cycle: Cycle, members: Ints) -> tuple[Ints, Ints]:
    """Those *members*, in order, above their jobs' minimum, and their ordinals."""
    jobs, job = cycle.snap.jobs, cycle.processes.job[members]
    by_job = np.argsort(job, kind="stable")
    begins = np.append(True, job[by_job][1:] != job[by_job][:-1])[: len(job)].nonzero()[0]
    places = np.empty(len(members), np.int64)
    places[by_job] = np.arange(len(job)) - np.repeat(begins, np.diff(np.append(begins, len(job))))
    step = jobs.step[job]
    spared = places < (cycle.count[job] - jobs.min[job]) // step * step
    return members[spared], places[spared]


def victims_for(spare: SpareWorkers, gang: GangRequest, least: int) -> Ints | None:
    """The workers to stop for a job at its minimum; None if nothing helps.

    Each of them is needed: without it the job would not fit.
    """
    if not spare.could_help(gang, least):
        return None
    cycle, processes = spare.cycle, spare.cycle.processes

    def fits(units: list[Ints]) -> bool:
        capacity, members = cycle.soon.copy(), _concatenated(units)
        processes.release(capacity, members)
        return lay_out(capacity, cycle.within_budget(gang, least, members), least, least).workers >= least

    units = spare.units(spare.members)
    if not fits(units):
        # Minimums prevent it. Try only workers on nodes where the job would fit without minimums.
        nodes = [spot.node for spot in lay_out(spare.capacity, gang, least, least).spots]
        units = spare.units(spare.members[np.isin(processes.node[spare.members], nodes)])
        if not fits(units):
            return None
    units = units[: shortest(len(units), lambda length: fits(units[:length]))]
    capacity = cycle.soon.copy()
    processes.release(capacity, _concatenated(units))
    fitting = {spot.node for spot in lay_out(capacity, gang, least, least).spots}
    near = [unit for unit in units if not fitting.isdisjoint(processes.node[unit].tolist())]
    if len(near) < len(units) and fits(near):
        units = near
    return _concatenated(pruned(units, spare, gang, least))


def shortest(length: int, fits: Callable[[int], bool]) -> int:
    """The smallest n <= *length* with fits(n); fits must be monotonic."""
    low, high = 0, length
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return low


def pruned(units: list[Ints], spare: SpareWorkers, gang: GangRequest, least: int) -> list[Ints]:
    """*units* without those that are not needed, the last ones removed first.

    Tries halves recursively, so that few needed units among many take few checks.
    """
    cycle, processes = spare.cycle, spare.cycle.processes
    capacity, leaving = cycle.soon.copy(), _concatenated(units)
    processes.release(capacity, leaving)

    def keep(some: list[Ints]) -> list[Ints]:
        nonlocal leaving
        members = _concatenated(some)
        processes.undo_release(capacity, members)
        rest = np.setdiff1d(leaving, members, assume_unique=True)
        if lay_out(capacity, cycle.within_budget(gang, least, rest), least, least).workers >= least:
            leaving = rest
            return []
        processes.release(capacity, members)
        if len(some) <= 1:
            return some
        half = len(some) // 2
        late = keep(some[half:])
        return keep(some[:half]) + late

    while len(left := keep(units)) < len(units):
        units = left
    return units


def _concatenated(units: list[Ints]) -> Ints:
    return np.concatenate(units) if units else np.zeros(0, np.int64)
