"""The objectives of the other solvers, with pairs of jobs that share GPUs.

*pairs* (p, 2) are rows of the problem that may share GPUs, each pair once; a row with itself is two jobs of that class.
*pair_rate* (p, types, 2) has the rates of both. Rows of different scale never share. Solvers do not classify: classify
first, and pass the rates of pairs of classes. In a solution, `share` is time alone, `pairs` and `pair_share` are shared
time by job.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.kernels import classes
from levada.solve.efficient import FAIR_INSTEAD
from levada.solve.entities import Entities, fifo_numbers
from levada.solve.fallback import with_fallback
from levada.solve.finish_time import RemainingWork
from levada.solve.highs import LpSolution, NoSolution
from levada.solve.levels import LevelLp
from levada.solve.leximin import leximin
from levada.solve.max_throughput import UNMET
from levada.solve.pairs import PairColumns, assign_pairs, expand_pairs
from levada.solve.problem import TRACE, ShareProblem, Solution, normalised, relative, usable
from levada.solve.water_filling import fill

#: A common level from this on is 1 but for rounding.
_REACHED = 1 - 1e-10
#: Maximum number of Newton iterations.
_MAX_ITERATIONS = 200
#: Relative tolerance of levels recomputed from shares.
_LEVEL_TOLERANCE = 1e-6


@with_fallback
def max_min_packed(problem: ShareProblem, pairs: Ints, pair_rate: Floats) -> Solution:
    """See `max_min`."""
    c, pair_c = pair_levels(problem, pairs, pair_rate)
    program, columns = _program(problem, c, np.ones(len(c)), pairs, pair_c)
    answer, missing = columns.solve()
    bound = (answer.value + missing) * program.unit
    return _solution(problem, program, columns, pairs, pair_c, answer, bound)


@with_fallback
def leximin_packed(problem: ShareProblem, pairs: Ints, pair_rate: Floats) -> Solution:
    """See `leximin`."""
    c, pair_c = pair_levels(problem, pairs, pair_rate)
    program, columns = _program(problem, c, np.ones(len(c)), pairs, pair_c)
    answer, missing = columns.solve()
    bound = (answer.value + missing) * program.unit
    filled = fill(columns, answer)
    solution = _solution(problem, program, columns, pairs, pair_c, filled.solution, bound)
    _check(solution, problem.per_job(filled.levels), problem.per_job(program.max_level))
    return solution


@with_fallback
def efficient_packed(problem: ShareProblem, pairs: Ints, pair_rate: Floats, floor: float) -> Solution:
    """See `efficient`: a pair counts the speed of both jobs. Floors are leximin rates without sharing."""
    fair = leximin(problem)
    if fair.method == "equal" or fair.levels is None:
        return fair
    rate = usable(problem)
    max_rate = np.where(rate.any(axis=1), rate.max(axis=1, initial=0.0), 1.0)
    speed, pair_speed = rate / max_rate[:, None], pair_rate / max_rate[pairs][:, None, :]
    max_level = normalised(problem).max(axis=1, initial=0.0)  # on the fastest type
    min_speed = np.zeros(len(max_rate))
    min_speed[np.arange(len(max_rate)) if problem.of is None else problem.of] = fair.levels
    min_speed = floor * np.divide(min_speed, max_level, out=np.zeros_like(min_speed), where=max_level > 0)
    value = problem.weight * problem.scale
    worth = speed * (value * problem.count)[:, None]
    gpus = problem.count * problem.scale
    # Slightly less than required, so that rounding does not make the program infeasible.
    program = LevelLp(speed, gpus, problem.capacity, np.zeros(len(max_rate)), min_speed * (1 - 1e-9), worth=worth)
    pair_worth = (pair_speed * value[pairs][:, None]).sum(2)
    columns = PairColumns(program, problem.count, problem.scale, pairs, pair_speed, pair_worth)
    try:
        answer, _ = columns.solve()
    except NoSolution:
        return msgspec.structs.replace(fair, alarm=FAIR_INSTEAD)
    solution = _solution(problem, program, columns, pairs, pair_speed, answer, fair.bound)
    assert solution.levels is not None
    levels = solution.levels * problem.per_job(max_level)
    runnable = problem.per_job(program.runnable)
    return msgspec.structs.replace(
        solution, levels=levels, level=float(levels[runnable].min()) if runnable.any() else 0.0
    )


@with_fallback
def hierarchical_packed(
    problem: ShareProblem, pairs: Ints, pair_rate: Floats, entity_weight: Floats, fifo: Bools | None = None
) -> Solution:
    """See `hierarchical`."""
    is_fifo = np.zeros(len(entity_weight), np.bool_) if fifo is None else np.asarray(fifo, np.bool_)
    rows, pairs, rates, _ = split_rows(problem, pairs, pair_rate, fifo_numbers(problem, is_fifo).astype(np.float64))
    entities = Entities(rows, entity_weight, is_fifo)
    c = relative(rows)
    pair_c = _scale_pairs(c, rows, pairs, rates)
    program, columns = _program(rows, c, entities.slopes(c.max(axis=1, initial=0.0) > 0), pairs, pair_c)
    answer, _ = columns.solve()
    filled = fill(columns, answer, entities.slopes)
    solution = _solution(rows, program, columns, pairs, pair_c, filled.solution, float("inf"))
    _check(solution, rows.per_job(filled.levels), rows.per_job(program.max_level))
    return msgspec.structs.replace(solution, level=entities.lowest(filled.levels, program.runnable))


def _check(solution: Solution, levels: Floats, max_level: Floats) -> None:
    """Raise NoSolution if the shares do not reach *levels*; *max_level* is that of each job alone."""
    assert solution.levels is not None
    if (np.abs(solution.levels - levels) > _LEVEL_TOLERANCE * levels + TRACE * max_level).any():
        raise NoSolution("the shares do not reach the computed levels")


@with_fallback
def makespan_packed(problem: ShareProblem, pairs: Ints, pair_rate: Floats, steps: Floats) -> Solution:
    """See `makespan`."""
    rows, pairs, rates, (row_steps,) = split_rows(problem, pairs, pair_rate, steps)
    c = usable(rows)
    program, columns = _program(rows, c, np.maximum(row_steps, 0.0), pairs, rates)
    answer, missing = columns.solve()
    solution = _solution(rows, program, columns, pairs, rates, answer, 0.0)
    assert solution.levels is not None
    busy = (steps > 0) & rows.per_job(program.runnable)
    if not busy.any():
        return msgspec.structs.replace(solution, level=0.0)
    min_level = 1.0 / ((answer.value + missing) * program.unit)
    return msgspec.structs.replace(solution, level=float((steps[busy] / solution.levels[busy]).max()), bound=min_level)


@with_fallback
def finish_time_packed(
    problem: ShareProblem, pairs: Ints, pair_rate: Floats, steps: Floats, elapsed: Floats, ideal: Floats
) -> Solution:
    """See `finish_time`."""
    rows, pairs, rates, own = split_rows(problem, pairs, pair_rate, steps, elapsed, ideal)
    c = usable(rows)
    max_rate = c.max(axis=1, initial=0.0)
    for side in (0, 1):
        np.maximum.at(max_rate, pairs[:, side], rates[:, :, side].max(axis=1, initial=0.0))
    busy = (c.max(axis=1, initial=0.0) > 0) & (own[0] > 0) & (own[2] > 0)
    if not busy.any():
        program, columns = _program(rows, c, np.zeros(len(c)), pairs, rates)
        answer, _ = columns.solve()
        return msgspec.structs.replace(_solution(rows, program, columns, pairs, rates, answer, 0.0), level=0.0)
    remaining = RemainingWork(*(column[busy] for column in own))
    ratio = float(((remaining.elapsed + remaining.steps / max_rate[busy]) / remaining.ideal).max())
    need = np.zeros(len(c))
    need[busy] = remaining.required_rate(ratio)
    program, columns = _program(rows, c, need, pairs, rates)
    for _ in range(_MAX_ITERATIONS):
        answer, missing = columns.solve()
        if answer.value * program.unit >= _REACHED:
            break
        # Weigh rows by how much they limit t: no ratio is feasible at which the weighted rates exceed t.
        weight = program.blocking(answer)[busy] / need[busy]
        following = _root(
            remaining, weight, (answer.value + missing) * program.unit * float(weight @ need[busy]), ratio
        )
        if following <= ratio * (1 + 1e-14):
            break
        ratio = following
        need[busy] = remaining.required_rate(ratio)
        program.set(np.flatnonzero(busy), need[busy], np.zeros(int(busy.sum())))
    solution = _solution(rows, program, columns, pairs, rates, answer, ratio)
    assert solution.levels is not None
    counted = (steps > 0) & (ideal > 0) & rows.per_job(program.runnable)
    reached = (elapsed[counted] + steps[counted] / np.maximum(solution.levels[counted], 1e-300)) / ideal[counted]
    return msgspec.structs.replace(solution, level=float(reached.max()))


def _root(remaining: RemainingWork, weight: Floats, level: float, ratio: float) -> float:
    """The ratio, at least *ratio*, at which the weighted required rates equal *level*; Newton, from below."""
    for _ in range(_MAX_ITERATIONS):
        over = float(weight @ remaining.required_rate(ratio)) - level
        following = ratio - over / float(weight @ remaining.rate_slope(ratio))
        if over <= 0 or following <= ratio * (1 + 1e-15):
            break
        ratio = following
    return ratio


@with_fallback
def total_packed(
    problem: ShareProblem, pairs: Ints, pair_rate: Floats, cost: Floats | None = None, need: Floats | None = None
) -> Solution:
    """See `total`."""
    price = np.ones(len(problem.capacity)) if cost is None else cost
    min_rate = np.zeros(problem.jobs) if need is None else np.maximum(need, 0.0)
    for alarm, floor in (("", min_rate), (UNMET, np.zeros(problem.jobs))):
        rows, row_pairs, rates, (base,) = split_rows(problem, pairs, pair_rate, floor)
        c = usable(rows)
        gpus = rows.count * rows.scale
        if (base[c.max(axis=1, initial=0.0) == 0] > 0).any():
            continue
        worth = rows.count[:, None] * c / price
        program = LevelLp(c, gpus, rows.capacity, np.zeros(len(c)), base, worth=worth)
        columns = PairColumns(program, rows.count, rows.scale, row_pairs, rates, rates.sum(axis=2) / price)
        try:
            answer, missing = _feasible(columns, base)
        except NoSolution:
            if alarm:
                raise
            continue
        bound = (answer.value + missing) * program.objective_unit
        solution = _solution(rows, program, columns, row_pairs, rates, answer, bound)
        return msgspec.structs.replace(solution, level=answer.value * program.objective_unit, alarm=alarm)
    raise NoSolution("the program is infeasible without required rates")


def _feasible(columns: PairColumns, base: Floats) -> tuple[LpSolution, float]:
    """The optimum. If only pairs can reach the base, there are no duals to price columns: add all columns."""
    try:
        return columns.solve()
    except NoSolution:
        if not base.any():
            raise
        columns.add_all()
        return columns.solve()


def pair_levels(problem: ShareProblem, pairs: Ints, pair_rate: Floats) -> tuple[Floats, Floats]:
    """Levels per unit of time, alone and shared."""
    c = normalised(problem)
    return c, _scale_pairs(c, problem, pairs, pair_rate)


def _scale_pairs(c: Floats, problem: ShareProblem, pairs: Ints, pair_rate: Floats) -> Floats:
    """Rates of pairs in the unit of *c*."""
    best = usable(problem).max(axis=1, initial=0.0)
    factor = np.divide(c.max(axis=1, initial=0.0), best, out=np.zeros(len(c)), where=best > 0)
    return pair_rate * factor[pairs][:, None, :]


def _program(
    problem: ShareProblem, c: Floats, pace: Floats, pairs: Ints, pair_c: Floats
) -> tuple[LevelLp, PairColumns]:
    count = problem.count
    program = LevelLp(c, count * problem.scale, problem.capacity, pace)
    return program, PairColumns(program, count, problem.scale, pairs, pair_c)


def split_rows(
    problem: ShareProblem, pairs: Ints, pair_rate: Floats, *columns: Floats
) -> tuple[ShareProblem, Ints, Floats, list[Floats]]:
    """Split rows whose jobs differ in *columns*; returns the problem, its pairs and rates, and the columns by row.

    Required rates of jobs that share GPUs cannot be added up by class.
    """
    if problem.of is None:
        return problem, pairs, pair_rate, list(columns)
    first, of = classes.distinct_rows(np.column_stack([problem.of.astype(np.float64), *columns]))
    old = problem.of[first]
    rows = ShareProblem(
        rate=problem.rate[old],
        scale=problem.scale[old],
        weight=problem.weight[old],
        entity=problem.entity[old],
        capacity=problem.capacity,
        of=of,
    )
    row_pairs, source = expand_pairs(pairs, old, len(problem.rate))
    return rows, row_pairs, pair_rate[source], [column[first] for column in columns]


def _solution(
    problem: ShareProblem,
    program: LevelLp,
    columns: PairColumns,
    pairs: Ints,
    pair_c: Floats,
    answer: LpSolution,
    bound: float,
) -> Solution:
    """Shares by job, scaled down where rounding exceeds time or capacity; `level` is the lowest level."""
    rows, types = program.c.shape
    count, capacity = problem.count, problem.capacity
    x = np.where(answer.x > TRACE, answer.x, 0.0)  # in the units of the program
    share = x[1 : 1 + rows * types].reshape(rows, types) * program.time[:, None]
    mass = columns.masses(x, len(pairs))
    time = share.sum(axis=1) * count
    for side in (0, 1):
        np.add.at(time, pairs[:, side], mass.sum(axis=1))
    use = (count * problem.scale) @ share + problem.scale[pairs[:, 0]] @ mass
    use_scale = np.ones(types)
    np.divide(capacity, use, out=use_scale, where=use > capacity)
    overtime = np.maximum(np.divide(time, count, out=np.ones(rows), where=count > 0), 1.0)
    share = share * use_scale / overtime[:, None]
    mass = mass * use_scale / np.maximum(overtime[pairs[:, 0]], overtime[pairs[:, 1]])[:, None]
    levels = (program.c * share).sum(axis=1)
    for side in (0, 1):
        pair_level = (pair_c[:, :, side] * mass).sum(axis=1) / np.maximum(count[pairs[:, side]], 1.0)
        np.add.at(levels, pairs[:, side], pair_level)
    of = np.arange(rows) if problem.of is None else problem.of
    job_pairs, pair_share = assign_pairs(pairs, mass, of, rows)
    return Solution(
        share=problem.per_job(share),
        level=float(levels[program.runnable].min()) if program.runnable.any() else 0.0,
        bound=bound,
        prices=np.maximum(answer.dual[:types], 0.0) * program.unit * program.objective_unit / program.cap,
        method="highs",
        levels=problem.per_job(levels),
        pairs=job_pairs,
        pair_share=pair_share,
    )
