"""Naive versions of the programs, one row per job: slow, and independent of the code under test."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.solve.highs import Lp, LpModel
from levada.solve.problem import ShareProblem

NO_ROW = -np.inf


def _solve(cost: Floats, matrix: Floats, lower: Floats, upper: Floats) -> tuple[float, Floats] | None:
    """max cost . x over x >= 0 and lower <= matrix x <= upper."""
    columns = matrix.shape[1]
    if not columns:
        return 0.0, np.zeros(0)
    answer = LpModel(
        Lp(
            cost=cost,
            lower=np.zeros(columns),
            upper=np.full(columns, np.inf),
            row_lower=lower,
            row_upper=upper,
            start=matrix.shape[0] * np.arange(columns + 1),
            index=np.tile(np.arange(matrix.shape[0]), columns),
            value=np.ascontiguousarray(matrix.T).ravel(),
        )
    ).solve()
    return None if answer is None else (answer.value, answer.x)


def _limits(problem: ShareProblem, extra: int) -> tuple[Floats, Floats]:
    """Rows and upper bounds for time and capacity, with *extra* columns at the end."""
    jobs, types = problem.rate.shape
    rows = np.zeros((jobs + types, jobs * types + extra))
    for job in range(jobs):
        rows[job, job * types : (job + 1) * types] = 1.0
        for kind in range(types):
            rows[jobs + kind, job * types + kind] = problem.scale[job]
    return rows, np.concatenate([np.ones(jobs), problem.capacity])


def reachable(problem: ShareProblem) -> Ints:
    """Jobs that can run on some type."""
    return np.flatnonzero(np.where(problem.capacity > 0, problem.rate, 0.0).max(axis=1, initial=0.0) > 0)


def level_rows(problem: ShareProblem) -> Floats:
    """(jobs, types): scale / (weight x proportional rate) x rate."""
    jobs, types = problem.rate.shape
    rows = np.zeros((jobs, types))
    for job in reachable(problem).tolist():
        base = sum(problem.rate[job, k] * problem.capacity[k] for k in range(types)) / problem.capacity.sum()
        rows[job] = problem.scale[job] / (problem.weight[job] * base) * problem.rate[job]
    return np.where(problem.capacity > 0, rows, 0.0)


def _levels_at_least(c: Floats, jobs: Ints, floor: Floats, slope: Floats, columns: int) -> tuple[Floats, Floats]:
    """Rows `level - slope t >= floor`, with t as the last of *columns*."""
    types = c.shape[1]
    rows = np.zeros((len(jobs), columns))
    for at, job in enumerate(jobs.tolist()):
        rows[at, job * types : (job + 1) * types] = c[job]
        rows[at, -1] = -slope[at]
    return rows, floor


def largest_t(problem: ShareProblem, c: Floats, jobs: Ints, floor: Floats, slope: Floats) -> float:
    """The largest t with `c x >= floor + slope t` for these jobs."""
    limits, bound = _limits(problem, 1)
    # Scaled to the size of the program, so that tolerances do not affect the comparison.
    rows, least = _levels_at_least(c, jobs, floor, slope, limits.shape[1])
    size = np.maximum(np.abs(rows[:, :-1]).max(axis=1, initial=1e-300), 1e-300)
    matrix = np.concatenate([limits, rows / size[:, None]])
    cost = np.zeros(limits.shape[1])
    cost[-1] = 1.0
    lower = np.concatenate([np.full(len(bound), NO_ROW), least / size])
    upper = np.concatenate([bound, np.full(len(least), np.inf)])
    solution = _solve(cost, matrix, lower, upper)
    assert solution is not None
    return solution[0]


def max_min_level(problem: ShareProblem) -> float:
    """The largest lowest level."""
    jobs = reachable(problem)
    if not len(jobs):
        return 0.0
    return largest_t(problem, level_rows(problem), jobs, np.zeros(len(jobs)), np.ones(len(jobs)))


def leximin_levels(problem: ShareProblem) -> Floats:
    """The levels of water-filling: after each common level, one program per job tests whether it can rise."""
    c = level_rows(problem)
    jobs = reachable(problem)
    levels, final = np.zeros(len(c)), np.zeros(len(c), bool)
    while not final[jobs].all():
        active = ~final[jobs]
        t = largest_t(problem, c, jobs, np.where(active, 0.0, levels[jobs]) * (1 - 1e-10), active.astype(float))
        levels[jobs[active]] = t
        for at in np.flatnonzero(active).tolist():
            only = np.zeros(len(jobs))
            only[at] = 1.0
            more = largest_t(problem, c, jobs, levels[jobs] * (1 - 1e-10), only)
            if more <= 1e-6 * t:
                final[jobs[at]] = True
    return levels


def can_meet(problem: ShareProblem, need: Floats) -> bool:
    """Whether all minimum rates are feasible."""
    return needed_load(problem, need) <= 1


def needed_load(problem: ShareProblem, need: Floats) -> float:
    """The smallest fraction of all capacities that meets all minimum rates; inf if none does."""
    jobs = len(problem.rate)
    limits, bound = _limits(problem, 1)
    limits[jobs:, -1] = -problem.capacity
    bound[jobs:] = 0.0
    busy = np.flatnonzero(need > 0)
    rate = np.where(problem.capacity > 0, problem.rate, 0.0)
    rows, _ = _levels_at_least(
        rate / np.maximum(need, 1e-300)[:, None], busy, need[busy], np.zeros(len(busy)), limits.shape[1]
    )
    matrix = np.concatenate([limits, rows])
    lower = np.concatenate([np.full(len(bound), NO_ROW), np.ones(len(busy))])
    upper = np.concatenate([bound, np.full(len(busy), np.inf)])
    cost = np.zeros(limits.shape[1])
    cost[-1] = -1.0
    solution = _solve(cost, matrix, lower, upper)
    return np.inf if solution is None else -solution[0]


def best_sum(problem: ShareProblem, worth: Floats) -> float:
    """The largest sum of worth times share."""
    limits, bound = _limits(problem, 0)
    usable = np.where((problem.rate > 0) & (problem.capacity > 0), worth, 0.0)
    solution = _solve(usable.ravel(), limits, np.full(len(bound), NO_ROW), bound)
    assert solution is not None
    return solution[0]
