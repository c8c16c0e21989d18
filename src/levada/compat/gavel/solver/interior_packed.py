"""Interior optimal points with pairs of jobs that share GPUs; see `interior`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from levada.compat.gavel.solver.interior import VERTEX_INSTEAD, search_makespan
from levada.compat.gavel.solver.selfdual import ConstraintSets, solve_path
from levada.compat.gavel.solver.selfdual_pairs import PairProgram
from levada.compat.gavel.solver.selfdual_ratio import follow_ratio_pairs
from levada.compat.gavel.solver.water_filling import FillingState, water_fill
from levada.core.types import Bools, Floats, Ints
from levada.solve.fallback import with_fallback
from levada.solve.highs import NoSolution
from levada.solve.max_throughput import UNMET
from levada.solve.packed import (
    finish_time_packed,
    leximin_packed,
    makespan_packed,
    max_min_packed,
    pair_levels,
    split_rows,
    total_packed,
)
from levada.solve.pairs import expand_pairs
from levada.solve.problem import ShareProblem, Solution, usable

#: Creates the constraints of a program from the levels of both members per unit of time in each column, their rows, and
#: the runnable rows; or the terms of their ratios, see `PairRatioProgram`.
ConstraintBuilder = Callable[[Floats, Ints, Bools], ConstraintSets | Floats]


@with_fallback
def max_min_packed_interior(problem: ShareProblem, pairs: Ints, pair_rate: Floats) -> Solution:
    """See `max_min_packed`. Every two jobs that can share GPUs get some shared time."""

    def rise(reached: Floats, members: Ints, runnable: Bools) -> ConstraintSets:
        rows = (1, int(runnable.sum()))
        return ConstraintSets(reached[None], np.zeros(rows), np.ones(rows), np.ones(rows, np.bool_))

    c, pair_c = pair_levels(problem, pairs, pair_rate)
    return _interior(problem, pairs, c, pair_c, rise) or _vertex(max_min_packed(problem, pairs, pair_rate))


@with_fallback
def leximin_packed_interior(problem: ShareProblem, pairs: Ints, pair_rate: Floats, levels: Floats) -> Solution:
    """See `leximin_packed`, which computes *levels*, and `leximin_interior`."""
    c, pair_c = pair_levels(problem, pairs, pair_rate)
    of = np.arange(len(c)) if problem.of is None else problem.of
    runnable = (problem.count > 0) & (c.max(axis=1, initial=0.0) > 0)

    def by_row(values: Floats | None) -> Floats:
        rows = np.zeros(len(c))
        rows[of] = values
        return rows[runnable]

    def solve(state: FillingState) -> tuple[Solution, Floats]:
        solution = _interior(
            problem, pairs, c, pair_c, lambda reached, members, runnable: state.levels(reached, members)
        )
        if solution is None:
            raise NoSolution("the path does not converge")
        return solution, by_row(solution.levels)

    try:
        return water_fill(by_row(levels), problem.scale[runnable], problem.weight[runnable], solve)
    except NoSolution:
        return _vertex(leximin_packed(problem, pairs, pair_rate))


@with_fallback
def makespan_packed_interior(
    problem: ShareProblem, pairs: Ints, pair_rate: Floats, steps: Floats, time: float | None = None
) -> Solution:
    """See `makespan_packed` and `makespan_interior`."""
    optimum = makespan_packed(problem, pairs, pair_rate, steps)
    within = search_makespan(optimum.bound) if time is None else time
    rows, row_pairs, rates, (steps_left,) = split_rows(problem, pairs, pair_rate, steps)

    def in_time(reached: Floats, members: Ints, runnable: Bools) -> ConstraintSets:
        need = steps_left[runnable][None] / within
        return ConstraintSets(reached[None], need, np.zeros_like(need), np.ones(need.shape, np.bool_))

    solution = _interior(rows, row_pairs, usable(rows), rates, in_time)
    if solution is None:
        return _vertex(optimum)
    assert solution.levels is not None
    busy = (steps > 0) & (solution.levels > 0)
    latest = float((steps[busy] / solution.levels[busy]).max(initial=0.0))
    return msgspec.structs.replace(solution, level=latest, bound=latest)


@with_fallback
def finish_time_packed_interior(
    problem: ShareProblem, pairs: Ints, pair_rate: Floats, steps: Floats, elapsed: Floats, ideal: Floats
) -> Solution:
    """See `finish_time_packed` and `finish_time_interior`."""
    rows, row_pairs, rates, (steps_left, elapsed_s, ideal_s) = split_rows(
        problem, pairs, pair_rate, steps, elapsed, ideal
    )
    solution = None
    if ((steps_left > 0) & (ideal_s > 0)).all():
        solution = _interior(
            rows,
            row_pairs,
            usable(rows),
            rates,
            lambda _, __, runnable: np.stack([steps_left[runnable], elapsed_s[runnable]]) / ideal_s[runnable],
        )
    if solution is None:
        return _vertex(finish_time_packed(problem, pairs, pair_rate, steps, elapsed, ideal))
    assert solution.levels is not None
    busy = solution.levels > 0
    ratio = float(((elapsed[busy] + steps[busy] / solution.levels[busy]) / ideal[busy]).max(initial=0.0))
    return msgspec.structs.replace(solution, level=ratio, bound=ratio)


@with_fallback
def total_packed_interior(
    problem: ShareProblem, pairs: Ints, pair_rate: Floats, cost: Floats | None = None, need: Floats | None = None
) -> Solution:
    """See `total_packed`. A *need* below 0, that of a missed deadline, is always met."""
    optimum = total_packed(problem, pairs, pair_rate, cost, need)
    price = np.ones(len(problem.capacity)) if cost is None else cost
    min_rate = np.zeros(problem.jobs) if need is None or optimum.alarm == UNMET else need
    rows, row_pairs, rates, (base,) = split_rows(problem, pairs, pair_rate, min_rate)

    def floors(reached: Floats, members: Ints, runnable: Bools) -> ConstraintSets:
        sets = int(base.any())
        floor = np.tile(base[runnable], (sets, 1))
        return ConstraintSets(
            np.tile(reached, (sets, 1, 1)), floor, np.zeros_like(floor), np.ones(floor.shape, np.bool_)
        )

    solution = _interior(rows, row_pairs, usable(rows), rates, floors, price)
    if solution is None:
        return _vertex(optimum)
    return msgspec.structs.replace(solution, level=optimum.level, bound=optimum.bound, alarm=optimum.alarm)


def _vertex(optimum: Solution) -> Solution:
    return msgspec.structs.replace(optimum, alarm=optimum.alarm or VERTEX_INSTEAD)


def _interior(
    problem: ShareProblem,
    pairs: Ints,
    c: Floats,
    pair_c: Floats,
    constraints: ConstraintBuilder,
    price: Floats | None = None,
) -> Solution | None:
    """The end of the path of the program with these constraints; None if it does not converge.

    With a *price* of GPUs, the program maximizes the rate per cost.
    """
    count, scale, capacity = problem.count, problem.scale, problem.capacity
    runnable = (count > 0) & (c.max(axis=1, initial=0.0) > 0)
    kinds = np.flatnonzero(capacity > 0)
    if not runnable.any() or not len(kinds):
        return _solution(problem, c, pair_c, pairs, np.zeros_like(c), np.zeros(pair_c.shape[:2]))
    here = np.flatnonzero(runnable)
    a, b = pairs.T
    two = np.flatnonzero(runnable[a] & runnable[b] & (scale[a] == scale[b]) & ((a != b) | (count[a] > 1)))
    members_of = np.concatenate([np.column_stack([here, np.full(len(here), -1)]), pairs[two]])
    both = np.concatenate([np.stack([c[here], np.zeros_like(c[here])], axis=2), pair_c[two]])[:, kinds]
    members = np.repeat(np.where(members_of >= 0, (np.cumsum(runnable) - 1)[members_of], -1), len(kinds), axis=0)
    kind = np.tile(np.arange(len(kinds)), len(members_of))
    reached = both.reshape(-1, 2)
    result = constraints(reached, members, runnable)
    data = count[runnable], scale[runnable], capacity[kinds], members, kind
    try:
        if isinstance(result, ConstraintSets):
            gain = None if price is None else reached.sum(axis=1) / price[kinds][kind]
            x, _ = solve_path(PairProgram(*data, result, gain))
        else:
            x = follow_ratio_pairs(*data, reached, result)
        x = np.clip(x, 0.0, 1.0).reshape(len(members_of), len(kinds))
    except NoSolution:
        return None
    x = np.where(both.any(axis=2), x, 0.0)
    share, pair_share = np.zeros_like(c), np.zeros(pair_c.shape[:2])
    share[np.ix_(here, kinds)], pair_share[np.ix_(two, kinds)] = x[: len(here)], x[len(here) :]
    return _solution(problem, c, pair_c, pairs, share, pair_share)


def _solution(
    problem: ShareProblem, c: Floats, pair_c: Floats, pairs: Ints, share: Floats, pair_share: Floats
) -> Solution:
    """Shares of jobs and of all pairs of jobs, from those of one job or pair of each class."""
    count = problem.count
    levels = (c * share).sum(axis=1)
    for side in (0, 1):
        np.add.at(levels, pairs[:, side], _partners(count, pairs, side) * (pair_c[:, :, side] * pair_share).sum(axis=1))
    runnable = (count > 0) & (c.max(axis=1, initial=0.0) > 0)
    level = float(levels[runnable].min(initial=np.inf)) if runnable.any() else 0.0
    used = pair_share.any(axis=1)
    of = np.arange(len(count)) if problem.of is None else problem.of
    members_of, source = expand_pairs(pairs[used], of, len(count))
    distinct = members_of[:, 0] != members_of[:, 1]
    return Solution(
        share=problem.per_job(share),
        level=level,
        bound=level,
        prices=np.zeros(len(problem.capacity)),
        method="interior",
        levels=problem.per_job(levels),
        pairs=members_of[distinct],
        pair_share=pair_share[used][source[distinct]],
    )


def _partners(count: Floats, pairs: Ints, side: int) -> Floats:
    """By pair of rows: the number of partners of a job of the row on this *side*; half if both rows are equal."""
    same_row = pairs[:, 0] == pairs[:, 1]
    return np.where(same_row, (count[pairs[:, 0]] - 1) / 2, count[pairs[:, 1 - side]])
