"""Interior optimal points; a simplex solver returns a vertex instead.

Published results of policies with an interior-point solver depend on its choice: every job gets some time on every
type. Use these shares to reproduce them, and `leximin` to run jobs well. All solvers here follow the path of such a
solver (`selfdual`), which ends near its published end point. If the path does not converge, the result is the analytic
center of the face (`central`) or, for water-filling and pairs, a vertex. As from such a solver, shares may exceed time
and GPUs by 1e-9.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.compat.gavel.solver.selfdual import ConstraintSets, follow_path
from levada.compat.gavel.solver.selfdual_ratio import follow_ratio
from levada.compat.gavel.solver.water_filling import FillingState, water_fill
from levada.core.types import Bools, Floats
from levada.kernels import classes
from levada.solve.central import Objective, center
from levada.solve.classes import classify
from levada.solve.fallback import with_fallback
from levada.solve.finish_time import RemainingWork, finish_time, makespan
from levada.solve.highs import NoSolution
from levada.solve.leximin import leximin
from levada.solve.max_throughput import UNMET, total
from levada.solve.problem import ShareProblem, Solution, normalised, usable

#: Alarm if the path does not converge and there is no center to use instead.
VERTEX_INSTEAD = "no interior optimal point was found: using a vertex with the same objective"


@with_fallback
def max_min_interior(problem: ShareProblem) -> Solution:
    """See `max_min`."""
    rows = classify(problem)
    c, count = normalised(rows), rows.count
    runnable = (count > 0) & (c.max(axis=1, initial=0.0) > 0)
    if not runnable.any():
        return _solution(rows, np.zeros_like(c), 0.0, c)
    unit = float(c.max(axis=1)[runnable].min())
    try:
        share = _path(rows, c, runnable, slope=np.ones(len(c)))
    except NoSolution:
        share = center(
            c / unit, count, count * rows.scale, rows.capacity, Objective(slope=runnable.astype(float))
        ).share
    share = np.clip(share, 0.0, 1.0)
    return _solution(rows, share, float((c * share).sum(axis=1)[runnable].min()), c)


@with_fallback
def leximin_interior(problem: ShareProblem, levels: Floats | None = None) -> Solution:
    """See `leximin` and `water_fill`; *levels* are those of `leximin`, by default computed."""
    if levels is None:
        solution = leximin(problem)
        assert solution.levels is not None
        levels = solution.levels
    rows = classify(problem)
    c, count = normalised(rows), rows.count
    runnable = (count > 0) & (c.max(axis=1, initial=0.0) > 0)
    if not runnable.any():
        return _solution(rows, np.zeros_like(c), 0.0, c)
    final = np.zeros(len(c))
    final[rows.of] = levels
    kinds = rows.capacity > 0
    cell = np.ix_(runnable, kinds)
    sizes = count[runnable], rows.scale[runnable], rows.capacity[kinds]

    def solve(state: FillingState) -> tuple[Floats, Floats]:
        row_share, _ = follow_path(*sizes, state.levels(c[cell], np.arange(int(runnable.sum()))[:, None]))
        return row_share, (c[cell] * row_share).sum(axis=1)

    share = np.zeros_like(c)
    try:
        share[cell] = water_fill(final[runnable], rows.scale[runnable], rows.weight[runnable], solve)
    except NoSolution:
        vertex = leximin(problem)
        return msgspec.structs.replace(vertex, alarm=vertex.alarm or VERTEX_INSTEAD)
    share = np.where(c > 0, np.clip(share, 0.0, 1.0), 0.0)
    return _solution(rows, share, float((c * share).sum(axis=1)[runnable].min()), c)


@with_fallback
def total_interior(problem: ShareProblem, cost: Floats | None = None, need: Floats | None = None) -> Solution:
    """See `total`."""
    alarm = total(problem, cost, need).alarm if need is not None else ""
    needs = np.zeros(problem.jobs) if need is None or alarm == UNMET else np.maximum(need, 0.0)
    rows, (base,) = _split_rows(problem, needs)
    rate, count = usable(rows), rows.count
    worth = rate if cost is None else rate / cost
    runnable = (count > 0) & (rate.max(axis=1, initial=0.0) > 0)
    if not runnable.any():
        return _solution(rows, np.zeros_like(rate), 0.0, rate, alarm)
    try:
        share = _path(rows, rate, runnable, gain=worth, base=base, levels=base > 0)
    except NoSolution:
        max_rate = np.maximum(rate.max(axis=1, initial=0.0), 1e-300)
        gain = count[:, None] * worth / float((count[:, None] * worth).max())
        c, gpus = rate / max_rate[:, None], count * rows.scale
        share = center(c, count, gpus, rows.capacity, Objective(gain=gain, base=base / max_rate, floors=base > 0)).share
    share = np.clip(share, 0.0, 1.0)
    return _solution(rows, share, float((count[:, None] * worth * share).sum()), rate, alarm)


@with_fallback
def makespan_interior(problem: ShareProblem, steps: Floats, time: float | None = None) -> Solution:
    """See `makespan`; all jobs end within *time* seconds, by default that of `search_makespan`."""
    zeros = np.zeros(problem.jobs)
    if time is None:
        time = search_makespan(makespan(problem, steps).level)
    return _within(problem, RemainingWork(steps, zeros, zeros + 1.0), time, roomy=True)


def search_makespan(least: float) -> float:
    """The result of the published binary search for the *least* time: it ends within 5 %."""
    low, high, top = 100.0, 1e6, 1e6
    result = least if not np.isfinite(least) else None
    while result is None:
        while 1.05 * low < high:
            middle = (low + high) / 2
            if middle >= least:
                result = high = middle
            else:
                low = middle
        low, high, top = top, 10 * top, 10 * top
    return result


@with_fallback
def finish_time_interior(problem: ShareProblem, steps: Floats, elapsed: Floats, ideal: Floats) -> Solution:
    """See `finish_time`."""
    runs = problem.per_job(usable(problem).max(axis=1, initial=0.0)) > 0
    rows, (steps_left, elapsed_s, ideal_s) = _split_rows(
        problem, *(np.where(runs, column, 0.0) for column in (steps, elapsed, ideal))
    )
    rate, kinds = usable(rows), rows.capacity > 0
    runnable = (rows.count > 0) & (steps_left > 0) & (ideal_s > 0)
    if not runnable.any():
        return _solution(rows, np.zeros_like(rate), 0.0, rate)
    data = rows.count[runnable], rows.scale[runnable], rows.capacity[kinds], rate[np.ix_(runnable, kinds)]
    try:
        row_share, ratio = follow_ratio(
            *data, steps_left[runnable] / ideal_s[runnable], elapsed_s[runnable] / ideal_s[runnable]
        )
    except NoSolution:
        least = finish_time(problem, steps, elapsed, ideal).level
        return _within(problem, RemainingWork(steps, elapsed, ideal), least)
    share = np.zeros_like(rate)
    share[np.ix_(runnable, kinds)] = row_share
    return _solution(rows, np.where(rate > 0, np.clip(share, 0.0, 1.0), 0.0), ratio, rate)


def _within(problem: ShareProblem, remaining: RemainingWork, ratio: float, roomy: bool = False) -> Solution:
    """Shares with ratios of at most *ratio*; *roomy* if there is a larger set of them."""
    runs = problem.per_job(usable(problem).max(axis=1, initial=0.0)) > 0
    runnable = runs & (remaining.steps > 0) & (remaining.ideal > 0)
    need = np.zeros(problem.jobs)
    busy = RemainingWork(remaining.steps[runnable], remaining.elapsed[runnable], remaining.ideal[runnable])
    # Slightly less than required: without an interior there is no center.
    need[runnable] = busy.required_rate(ratio) * (1.0 if roomy else 1 - 1e-7)
    rows, (base,) = _split_rows(problem, need)
    rate, count = usable(rows), rows.count
    gpus = count * rows.scale
    runs = (count > 0) & (rate.max(axis=1, initial=0.0) > 0)
    share = np.zeros_like(rate)
    if runs.any():
        try:
            if not roomy:
                raise NoSolution("the feasible set has no interior")
            share = _path(rows, rate, runs, base=base, levels=base > 0)
        except NoSolution:
            max_rate = np.maximum(rate.max(axis=1, initial=0.0), 1e-300)
            c = rate / max_rate[:, None]
            share = center(
                c, count, gpus, rows.capacity, Objective(base=base / max_rate, floors=base > 0, mu=1.0)
            ).share
    share = np.clip(share, 0.0, 1.0)
    reached = rows.per_job((rate * share).sum(axis=1))[runnable]
    late = (busy.elapsed + busy.steps / np.maximum(reached, 1e-300)) / busy.ideal
    return _solution(rows, share, float(late.max(initial=0.0)), rate)


def _path(
    rows: ShareProblem,
    c: Floats,
    runnable: Bools,
    gain: Floats | None = None,
    slope: Floats | None = None,
    base: Floats | None = None,
    levels: Bools | None = None,
) -> Floats:
    """The end of the path for runnable rows; 0 on types on which a row cannot run."""
    kinds = rows.capacity > 0
    cell = np.ix_(runnable, kinds)
    share = np.zeros_like(c)
    floor, rise = (None if column is None else column[runnable] for column in (base, slope))
    has = np.ones(int(runnable.sum()), np.bool_) if levels is None else levels[runnable]
    constraints = ConstraintSets.of(c[cell], floor, rise, has)
    gains = None if gain is None else gain[cell]
    share[cell], _ = follow_path(rows.count[runnable], rows.scale[runnable], rows.capacity[kinds], constraints, gains)
    return np.where(c > 0, np.maximum(share, 0.0), 0.0)


def _split_rows(problem: ShareProblem, *columns: Floats) -> tuple[ShareProblem, list[Floats]]:
    """Split rows whose jobs differ in *columns*; returns the problem, and the columns by row."""
    rows = classify(problem)
    assert rows.of is not None
    first, of = classes.distinct_rows(np.column_stack([rows.of.astype(np.float64), *columns]))
    old = rows.of[first]
    split = ShareProblem(
        rate=rows.rate[old],
        scale=rows.scale[old],
        weight=rows.weight[old],
        entity=rows.entity[old],
        capacity=rows.capacity,
        of=of,
    )
    return split, [column[first] for column in columns]


def _solution(rows: ShareProblem, share: Floats, level: float, c: Floats, alarm: str = "") -> Solution:
    return Solution(
        share=rows.per_job(share),
        level=level,
        bound=level,
        prices=np.zeros(len(rows.capacity)),
        method="interior",
        alarm=alarm,
        levels=rows.per_job((c * share).sum(axis=1)),
    )
