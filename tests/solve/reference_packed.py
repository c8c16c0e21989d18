"""Naive water-filling with pairs: one row per job, and one program per job and level.

Slow, and independent of the code under test.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.solve.highs import Lp, LpModel
from levada.solve.problem import ShareProblem
from tests.solve.reference_programs import level_rows, reachable

#: A job that can rise by less than this fraction of its maximum is fixed.
NO_RISE = 1e-6
#: Relative tolerance for levels reached before.
LEVEL_TOLERANCE = 1e-10
#: The fraction of their level that other jobs give up.
CONCESSION = 1e-8


class PackedProgram:
    """Columns: t, jobs alone (jobs, types), pairs of jobs (pairs, types). Rows: time, GPUs, levels."""

    def __init__(self, problem: ShareProblem, c: Floats, pairs: Ints, together: Floats) -> None:
        jobs, types = c.shape
        self.jobs, self.count, self.types = reachable(problem), jobs, types
        able = np.zeros(jobs, bool)
        able[self.jobs] = True
        fits = able[pairs].all(axis=1) & (problem.scale[pairs[:, 0]] == problem.scale[pairs[:, 1]])
        pairs, together = pairs[fits], np.where(problem.capacity[:, None] > 0, together[fits], 0.0)
        c = np.where(problem.capacity > 0, c, 0.0)
        self.best = c.max(axis=1, initial=0.0)
        for side in (0, 1):
            np.maximum.at(self.best, pairs[:, side], together[:, :, side].max(axis=1, initial=0.0))
        size = np.maximum(self.best, 1e-300)
        ones = np.ones((jobs, types))
        job, kind = np.indices((jobs, types))
        alone = [(job, ones), (jobs + kind, ones * problem.scale[:, None]), (jobs + types + job, c / size[:, None])]
        a, kind = np.broadcast_arrays(pairs[:, :1], np.arange(types))
        b, ones = np.broadcast_to(pairs[:, 1:], a.shape), np.ones(a.shape)
        both = [(a, ones), (b, ones), (jobs + kind, problem.scale[a])]
        both += [(jobs + types + row, together[:, :, side] / size[row]) for side, row in ((0, a), (1, b))]
        blocks = [tuple(np.stack(part, axis=2) for part in zip(*block, strict=True)) for block in (alone, both)]
        self.index = np.concatenate([index.ravel() for index, _ in blocks])
        self.value = np.concatenate([value.ravel() for _, value in blocks])
        entries = np.concatenate([np.full(index.shape[0] * types, index.shape[2]) for index, _ in blocks])
        self.start = np.concatenate([[0, len(self.jobs)], len(self.jobs) + np.cumsum(entries)])
        self.room, self.size = np.concatenate([np.ones(jobs), problem.capacity]), size

    def largest_t(self, floor: Floats, slope: Floats) -> float:
        """The largest t with level `floor + slope t` for every job that can run."""
        columns, limits = len(self.start) - 1, len(self.room)
        cost = np.zeros(columns)
        cost[0] = 1.0
        least = np.full(self.count, -np.inf)
        least[self.jobs] = (floor / self.size)[self.jobs]
        answer = LpModel(
            Lp(
                cost=cost,
                lower=np.zeros(columns),
                upper=np.full(columns, np.inf),
                row_lower=np.concatenate([np.full(limits, -np.inf), least]),
                row_upper=np.concatenate([self.room, np.full(self.count, np.inf)]),
                start=self.start,
                index=np.concatenate([limits + self.jobs, self.index]),
                value=np.concatenate([(-slope / self.size)[self.jobs], self.value]),
            )
        ).solve()
        assert answer is not None
        return answer.value

    def is_fixed(self, floor: Floats, job: int) -> bool:
        """Whether this job cannot rise above its floor while the others keep theirs."""
        only = np.zeros(len(floor))
        only[job] = 1.0
        return self.largest_t(floor * (1 - LEVEL_TOLERANCE), only) <= NO_RISE * float(self.best[job])


def _fill(program: PackedProgram, jobs: int, pace_of: object) -> Floats:
    assert callable(pace_of)
    levels, active = np.zeros(jobs), np.zeros(jobs, bool)
    active[program.jobs] = True
    while active.any():
        slope = pace_of(active)
        levels = levels + slope * program.largest_t(levels * (1 - LEVEL_TOLERANCE), slope)
        for job in np.flatnonzero(active).tolist():
            active[job] = not program.is_fixed(levels, job)
    return levels


def leximin_levels_packed(problem: ShareProblem, pairs: Ints, rates: Floats) -> Floats:
    """The levels of `leximin_packed`, by job."""
    c = level_rows(problem)
    return _fill(
        PackedProgram(problem, c, pairs, _like(problem, c, pairs, rates)), len(c), lambda active: active.astype(float)
    )


def rise(problem: ShareProblem, pairs: Ints, rates: Floats, levels: Floats, job: int) -> float:
    """An upper bound of the rise of this job's level without lowering jobs at or below it.

    Levels of `leximin_packed` are correct if it is 0 for all jobs. The rise is a concave function of the fraction that
    other jobs give up, so a line through two small fractions bounds its value at 0, where the solver is inaccurate.
    """
    c = level_rows(problem)
    program = PackedProgram(problem, c, pairs, _like(problem, c, pairs, rates))
    floor, only = np.minimum(levels, levels[job]), np.zeros(len(levels))
    only[job] = 1.0
    little, double = (program.largest_t(floor * (1 - part), only) for part in (CONCESSION, 2 * CONCESSION))
    return 2 * little - double


def hierarchical_levels(
    problem: ShareProblem, pairs: Ints, rates: Floats, entity_weight: Floats, fifo: Bools
) -> Floats:
    """The levels of `hierarchical` and `hierarchical_packed`, by job."""
    c = level_rows(problem) * (problem.weight / problem.scale)[:, None]

    def slope(active: Bools) -> Floats:
        rise = np.zeros(len(c))
        for job in np.flatnonzero(active).tolist():
            owner = problem.entity[job]
            mine = np.flatnonzero(active & (problem.entity == owner))
            if owner == 0:
                rise[job] = problem.weight[job]
            elif fifo[owner]:
                rise[job] = entity_weight[owner] if job == mine[0] else 0.0
            else:
                rise[job] = entity_weight[owner] * problem.weight[job] / problem.weight[mine].sum()
        return rise / problem.scale

    return _fill(PackedProgram(problem, c, pairs, _like(problem, c, pairs, rates)), len(c), slope)


def _like(problem: ShareProblem, c: Floats, pairs: Ints, rates: Floats) -> Floats:
    """Rates of pairs in the unit of *c*."""
    unit = np.zeros(len(c))
    for job in reachable(problem).tolist():
        kind = int(np.argmax(c[job]))
        unit[job] = c[job, kind] / problem.rate[job, kind]
    return rates * unit[pairs][:, None, :]
