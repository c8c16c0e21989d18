"""The middle of an optimal face. Interior-point solvers end there, simplex ends in a corner; both are optimal.

Published results of policies that ask an interior-point solver depend on its choice: every job gets a little of every
type. To repeat them, take these shares; to run jobs well, take `leximin`.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats
from levada.solve.central import centre
from levada.solve.classes import classify, distinct_rows
from levada.solve.finish_time import Duties, finish_time, makespan
from levada.solve.problem import Problem, Solution, fit, normalised, usable
from levada.solve.safe import safe
from levada.solve.total import total


@safe
def max_min_interior(problem: Problem) -> Solution:
    """See `max_min`."""
    rows = classify(problem)
    c, count = normalised(rows), rows.count
    gpus = count * rows.scale
    part = (gpus > 0) & (c.max(axis=1, initial=0.0) > 0)
    if not part.any():
        return _solution(rows, np.zeros_like(c), 0.0, c, np.zeros(len(rows.capacity)))
    unit = float(c.max(axis=1)[part].min())
    found = centre(c / unit, count, gpus, rows.capacity, pace=part.astype(float))
    share = fit(found.share, gpus, rows.capacity)
    return _solution(rows, share, float((c * share).sum(axis=1)[part].min()), c, found.prices * unit)


@safe
def total_interior(problem: Problem, cost: Floats | None = None, need: Floats | None = None) -> Solution:
    """See `total`."""
    corner = total(problem, cost, need)
    needs = np.zeros(problem.jobs) if need is None or corner.alarm else np.maximum(need, 0.0)
    rows, base = _apart(problem, needs)
    rate, count = usable(rows), rows.count
    best = np.maximum(rate.max(axis=1, initial=0.0), 1e-300)
    gain = count[:, None] * (rate if cost is None else rate / cost)
    unit = max(float(gain.max(initial=0.0)), 1e-300)
    found = centre(
        rate / best[:, None],
        count,
        count * rows.scale,
        rows.capacity,
        gain=gain / unit,
        base=base / best,
        floors=base > 0,
    )
    share = fit(found.share, count * rows.scale, rows.capacity)
    worth = rate if cost is None else rate / cost
    solution = _solution(rows, share, float((count[:, None] * worth * share).sum()), rate, found.prices * unit)
    return msgspec.structs.replace(solution, alarm=corner.alarm)


@safe
def makespan_interior(problem: Problem, steps: Floats, time: float | None = None) -> Solution:
    """See `makespan`; any shares that end within *time* seconds will do, which is the least there is by default."""
    least = makespan(problem, steps) if time is None else None
    zeros = np.zeros(problem.jobs)
    ratio = time if least is None else least.level
    assert ratio is not None
    return _within(problem, Duties(steps, zeros, zeros + 1.0), ratio)


@safe
def finish_time_interior(
    problem: Problem, steps: Floats, elapsed: Floats, ideal: Floats, ratio: float | None = None
) -> Solution:
    """See `finish_time`; any shares with no larger ratio than this will do, which is the least there is by default."""
    if ratio is None:
        ratio = finish_time(problem, steps, elapsed, ideal).level
    return _within(problem, Duties(steps, elapsed, ideal), ratio)


def _within(problem: Problem, duties: Duties, ratio: float) -> Solution:
    """The centre of all shares with which no ratio is larger."""
    runs = problem.each(usable(problem).max(axis=1, initial=0.0)) > 0
    part = runs & (duties.steps > 0) & (duties.ideal > 0)
    need = np.zeros(problem.jobs)
    # A hair less than needed: without any inside there is no middle.
    mine = Duties(duties.steps[part], duties.elapsed[part], duties.ideal[part])
    need[part] = mine.need(ratio) * (1 - 1e-7)
    rows, base = _apart(problem, need)
    rate, count = usable(rows), rows.count
    best = np.maximum(rate.max(axis=1, initial=0.0), 1e-300)
    gpus = count * rows.scale
    found = centre(rate / best[:, None], count, gpus, rows.capacity, base=base / best, floors=base > 0, mu=1.0)
    share = fit(found.share, gpus, rows.capacity)
    reached = rows.each((rate * share).sum(axis=1))[part]
    late = (mine.elapsed + mine.steps / np.maximum(reached, 1e-300)) / mine.ideal
    return _solution(rows, share, float(late.max(initial=0.0)), rate, found.prices)


def _apart(problem: Problem, need: Floats) -> tuple[Problem, Floats]:
    """The problem with jobs that need different rates in different rows, and the needs by row."""
    rows = classify(problem)
    assert rows.of is not None
    first, of = distinct_rows(np.column_stack([rows.of.astype(np.float64), need]))
    old = rows.of[first]
    apart = Problem(
        rate=rows.rate[old],
        scale=rows.scale[old],
        weight=rows.weight[old],
        entity=rows.entity[old],
        capacity=rows.capacity,
        of=of,
    )
    return apart, need[first]


def _solution(rows: Problem, share: Floats, level: float, c: Floats, prices: Floats) -> Solution:
    levels = rows.each((c * share).sum(axis=1))
    return Solution(share=rows.each(share), level=level, bound=level, prices=prices, how="central", levels=levels)
