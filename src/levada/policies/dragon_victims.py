"""Which workers leave so that somebody who waits finds room: few of them, lonely ones first, and none in vain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from levada.core.types import Ints
from levada.policies.dragon_board import Board
from levada.policies.dragon_cycle import Cycle
from levada.policies.dragon_gang import Gang, lay_out


class Spare:
    """Workers that running jobs could do without, the first to go first."""

    def __init__(self, cycle: Cycle, rank: Ints) -> None:
        self.cycle = cycle
        crew = cycle.crew
        above_min = cycle.count > cycle.snap.jobs.min
        members = (crew.removable & above_min[crew.job] & ~cycle.gone).nonzero()[0]
        keys = (-crew.index[members], crew.node[members], rank[crew.job[members]], crew.is_home[members])
        #: Lonely before those beside their servers, then by admission of their job, node, and highest index.
        self.members: Ints = members[np.lexsort(keys)]
        #: What would be free if they all left. More than can be had: each job keeps its minimum.
        self.board: Board = cycle.soon.copy()
        crew.give_back(self.board, self.members)

    def could_help(self, gang: Gang, least: int) -> bool:
        """False where no shrinking whatever makes room."""
        within = self.cycle.within_budget(gang, least, self.members)
        return lay_out(self.board, within, least, least).workers >= least

    def units(self, members: Ints) -> list[Ints]:
        """Those of *members* that their jobs can spare, in the same order, in units that leave together."""
        return units_of(self.cycle, members)


def units_of(cycle: Cycle, members: Ints) -> list[Ints]:
    """Those of *members* that their jobs can spare, in the same order; steps of a job leave together."""
    members, places = within_quota(cycle, members)
    jobs, job = cycle.snap.jobs, cycle.crew.job[members]
    step = jobs.step[job]
    if not (step > 1).any():
        return list(members[:, None])
    together: dict[tuple[int, int], list[int]] = {}
    for member, of, at, size in zip(members.tolist(), job.tolist(), places.tolist(), step.tolist(), strict=True):
        unit = together.pop((of, at // size), [])
        together[of, at // size] = [*unit, member]  # stands where its last member does
    return [np.array(unit) for (of, _), unit in together.items() if len(unit) == jobs.step[of]]


def within_quota(cycle: Cycle, members: Ints) -> tuple[Ints, Ints]:
    """Those of *members*, in their order, that leave their jobs at the minimum; and which of its job each one is."""
    jobs, job = cycle.snap.jobs, cycle.crew.job[members]
    by_job = np.argsort(job, kind="stable")
    begins = np.append(True, job[by_job][1:] != job[by_job][:-1])[: len(job)].nonzero()[0]
    places = np.empty(len(members), np.int64)
    places[by_job] = np.arange(len(job)) - np.repeat(begins, np.diff(np.append(begins, len(job))))
    step = jobs.step[job]
    spared = places < (cycle.count[job] - jobs.min[job]) // step * step
    return members[spared], places[spared]


def victims_for(spare: Spare, gang: Gang, least: int) -> Ints | None:
    """The workers whose leaving makes room for a whole job at its minimum; None where nothing helps.

    Each of them is needed: without it the job would not fit.
    """
    if not spare.could_help(gang, least):
        return None
    cycle, crew = spare.cycle, spare.cycle.crew

    def fits(units: list[Ints]) -> bool:
        board, members = cycle.soon.copy(), _joined(units)
        crew.give_back(board, members)
        return lay_out(board, cycle.within_budget(gang, least, members), least, least).workers >= least

    units = spare.units(spare.members)
    if not fits(units):
        # Minima stood in the way. Ask only those who stand where the job would fit if there were none.
        there = [spot.node for spot in lay_out(spare.board, gang, least, least).spots]
        units = spare.units(spare.members[np.isin(crew.node[spare.members], there)])
        if not fits(units):
            return None
    units = units[: shortest(len(units), lambda length: fits(units[:length]))]
    board = cycle.soon.copy()
    crew.give_back(board, _joined(units))
    fitting = {spot.node for spot in lay_out(board, gang, least, least).spots}
    near = [unit for unit in units if not fitting.isdisjoint(crew.node[unit].tolist())]
    if len(near) < len(units) and fits(near):
        units = near
    return _joined(pruned(units, spare, gang, least))


def shortest(length: int, fits: Callable[[int], bool]) -> int:
    """The smallest n <= *length* with fits(n), given that fits(length) and that more never hurts."""
    low, high = 0, length
    while low < high:
        middle = (low + high) // 2
        if fits(middle):
            high = middle
        else:
            low = middle + 1
    return low


def pruned(units: list[Ints], spare: Spare, gang: Gang, least: int) -> list[Ints]:
    """*units* without those that are not needed, the last asked first.

    Halves of halves are tried, so that a few needed among many cost few questions.
    """
    cycle, crew = spare.cycle, spare.cycle.crew
    board, leaving = cycle.soon.copy(), _joined(units)
    crew.give_back(board, leaving)

    def keep(some: list[Ints]) -> list[Ints]:
        nonlocal leaving
        members = _joined(some)
        crew.take_back(board, members)
        rest = np.setdiff1d(leaving, members, assume_unique=True)
        if lay_out(board, cycle.within_budget(gang, least, rest), least, least).workers >= least:
            leaving = rest
            return []
        crew.give_back(board, members)
        if len(some) <= 1:
            return some
        half = len(some) // 2
        late = keep(some[half:])
        return keep(some[:half]) + late

    while len(left := keep(units)) < len(units):
        units = left
    return units


def _joined(units: list[Ints]) -> Ints:
    return np.concatenate(units) if units else np.zeros(0, np.int64)
