"""Water-filling with pairs written down naively: one row per job, and one program per job and level.

Slow, plain, and independent of what it checks.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.solve.problem import Problem
from tests.solve.joblevel import NO_ROW, best_of, level_rows, reachable

#: A job that could rise by less than this part of what it could have at most is at its end.
NO_RISE = 1e-6


class Together:
    """Jobs alone (jobs, types), then pairs of jobs (pairs, types), then t."""

    def __init__(self, problem: Problem, c: Floats, pairs: Ints, together: Floats) -> None:
        jobs, types = c.shape
        self.c, self.jobs = c, reachable(problem)
        able = set(self.jobs.tolist())
        fits = [a in able and b in able and problem.scale[a] == problem.scale[b] for a, b in pairs.tolist()]
        pairs, together = pairs[fits], together[fits]
        self.limits = np.zeros((jobs + types, (jobs + len(pairs)) * types + 1))
        self.level = np.zeros((jobs, self.limits.shape[1]))
        who = [((job,), c[job : job + 1].T) for job in range(jobs)]
        who += [((int(a), int(b)), together[at]) for at, (a, b) in enumerate(pairs)]
        for at, (members, rates) in enumerate(who):
            for kind in range(types):
                column = at * types + kind
                self.limits[jobs + kind, column] = problem.scale[members[0]]
                for side, job in enumerate(members):
                    self.limits[job, column] = 1.0
                    self.level[job, column] = rates[kind, side] if problem.capacity[kind] > 0 else 0.0
        self.bound = np.concatenate([np.ones(jobs), problem.capacity])

    def largest_t(self, floor: Floats, pace: Floats) -> float:
        """The largest t at which every job that can run has `floor + pace t`."""
        rows = self.level[self.jobs]
        rows[:, -1] = -pace[self.jobs]
        size = np.maximum(np.abs(rows[:, :-1]).max(axis=1, initial=1e-300), 1e-300)
        cost = np.zeros(rows.shape[1])
        cost[-1] = 1.0
        found = best_of(
            cost,
            np.concatenate([self.limits, rows / size[:, None]]),
            np.concatenate([np.full(len(self.bound), NO_ROW), floor[self.jobs] * (1 - 1e-10) / size]),
            np.concatenate([self.bound, np.full(len(rows), np.inf)]),
        )
        assert found is not None
        return found[0]

    def stuck(self, levels: Floats, job: int) -> bool:
        """Whether this job cannot rise while the others keep their levels."""
        only = np.zeros(len(levels))
        only[job] = 1.0
        return self.largest_t(levels, only) <= NO_RISE * float(self.level[job, :-1].max())


def _fill(program: Together, jobs: int, pace_of: object) -> Floats:
    assert callable(pace_of)
    levels, active = np.zeros(jobs), np.zeros(jobs, bool)
    active[program.jobs] = True
    while active.any():
        pace = pace_of(active)
        levels = levels + pace * program.largest_t(levels, pace)
        for job in np.flatnonzero(active).tolist():
            active[job] = not program.stuck(levels, job)
    return levels


def leximin_levels_packed(problem: Problem, pairs: Ints, rates: Floats) -> Floats:
    """The levels of `leximin_packed`, by job."""
    c = level_rows(problem)
    return _fill(
        Together(problem, c, pairs, _like(problem, c, pairs, rates)), len(c), lambda active: active.astype(float)
    )


def hierarchical_levels(problem: Problem, pairs: Ints, rates: Floats, entity_weight: Floats, fifo: Bools) -> Floats:
    """The levels of `hierarchical` and `hierarchical_packed`, by job."""
    c = level_rows(problem) * (problem.weight / problem.scale)[:, None]

    def pace(active: Bools) -> Floats:
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

    return _fill(Together(problem, c, pairs, _like(problem, c, pairs, rates)), len(c), pace)


def _like(problem: Problem, c: Floats, pairs: Ints, rates: Floats) -> Floats:
    """Rates of pairs in the unit of *c*."""
    unit = np.zeros(len(c))
    for job in reachable(problem).tolist():
        kind = int(np.argmax(c[job]))
        unit[job] = c[job, kind] / problem.rate[job, kind]
    return rates * unit[pairs][:, None, :]
