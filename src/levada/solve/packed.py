"""The fair policies where two jobs may share GPUs.

*pairs* (p, 2) are rows of the problem that may run together, each pair once; a row with itself stands for two jobs of
that class. *pair_rate* (p, types, 2) is what each of the two reaches then. Rows of different scale never share.
Classify first, then ask for the rates of pairs of classes: rows are taken as they are. In a solution `share` is time
alone, `pairs` and `pair_share` the time together, by job.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.kernels import classes
from levada.solve.efficient import FAIR_INSTEAD
from levada.solve.entities import Entities, turns
from levada.solve.filling import fill
from levada.solve.finish_time import Duties
from levada.solve.highs import Answer, NoAnswer
from levada.solve.levels import LevelLp
from levada.solve.leximin import leximin
from levada.solve.pairs import Columns, between_jobs, of_jobs
from levada.solve.problem import TRACE, Problem, Solution, normalised, relative, usable
from levada.solve.safe import safe
from levada.solve.total import UNMET

#: A common level this little below 1 is rounding.
_REACHED = 1 - 1e-10
_MOST = 200
#: Shares give levels as they were found but for this part.
_KEPT = 1e-6


@safe
def max_min_packed(problem: Problem, pairs: Ints, pair_rate: Floats) -> Solution:
    """See `max_min`."""
    c, together = with_pairs(problem, pairs, pair_rate)
    program, columns = _program(problem, c, np.ones(len(c)), pairs, together)
    answer, missing = columns.solve()
    bound = (answer.value + missing) * program.unit
    return _solution(problem, program, columns, pairs, together, answer, bound)


@safe
def leximin_packed(problem: Problem, pairs: Ints, pair_rate: Floats) -> Solution:
    """See `leximin`."""
    c, together = with_pairs(problem, pairs, pair_rate)
    program, columns = _program(problem, c, np.ones(len(c)), pairs, together)
    answer, missing = columns.solve()
    bound = (answer.value + missing) * program.unit
    filled = fill(columns, answer)
    solution = _solution(problem, program, columns, pairs, together, filled.answer, bound)
    _check(solution, problem.each(filled.levels), problem.each(program.best))
    return solution


@safe
def efficient_packed(problem: Problem, pairs: Ints, pair_rate: Floats, floor: float) -> Solution:
    """See `efficient`: a pair is worth the speed of both of its jobs. What is fair is so where nobody shares."""
    fair = leximin(problem)
    if fair.how == "equal" or fair.levels is None:
        return fair
    rate = usable(problem)
    best = np.where(rate.any(axis=1), rate.max(axis=1, initial=0.0), 1.0)
    speed, together = rate / best[:, None], pair_rate / best[pairs][:, None, :]
    a_level = normalised(problem).max(axis=1, initial=0.0)  # what a row reaches where it is fastest
    owed = np.zeros(len(best))
    owed[np.arange(len(best)) if problem.of is None else problem.of] = fair.levels
    owed = floor * np.divide(owed, a_level, out=np.zeros_like(owed), where=a_level > 0)
    each = problem.weight * problem.scale
    worth = speed * (each * problem.count)[:, None]
    gpus = problem.count * problem.scale
    # A hair less than owed: else rounding could ask for more than there is.
    program = LevelLp(speed, gpus, problem.capacity, np.zeros(len(best)), owed * (1 - 1e-9), worth=worth)
    columns = Columns(program, problem.count, problem.scale, pairs, together, (together * each[pairs][:, None]).sum(2))
    try:
        answer, _ = columns.solve()
    except NoAnswer:
        return msgspec.structs.replace(fair, alarm=FAIR_INSTEAD)
    solution = _solution(problem, program, columns, pairs, together, answer, fair.bound)
    assert solution.levels is not None
    levels = solution.levels * problem.each(a_level)
    part = problem.each(program.part)
    return msgspec.structs.replace(solution, levels=levels, level=float(levels[part].min()) if part.any() else 0.0)


@safe
def hierarchical_packed(
    problem: Problem, pairs: Ints, pair_rate: Floats, entity_weight: Floats, fifo: Bools | None = None
) -> Solution:
    """See `hierarchical`."""
    in_turn = np.zeros(len(entity_weight), np.bool_) if fifo is None else np.asarray(fifo, np.bool_)
    rows, pairs, rates, _ = apart(problem, pairs, pair_rate, turns(problem, in_turn).astype(np.float64))
    entities = Entities(rows, entity_weight, in_turn)
    c = relative(rows)
    together = _like(c, rows, pairs, rates)
    program, columns = _program(rows, c, entities.pace(c.max(axis=1, initial=0.0) > 0), pairs, together)
    answer, _ = columns.solve()
    filled = fill(columns, answer, entities.pace)
    solution = _solution(rows, program, columns, pairs, together, filled.answer, float("inf"))
    _check(solution, rows.each(filled.levels), rows.each(program.best))
    return msgspec.structs.replace(solution, level=entities.lowest(filled.levels, program.part))


def _check(solution: Solution, levels: Floats, best: Floats) -> None:
    """Raises NoAnswer where shares do not give the levels that they were found for; *best* is of each job alone."""
    assert solution.levels is not None
    if (np.abs(solution.levels - levels) > _KEPT * levels + TRACE * best).any():
        raise NoAnswer("shares do not give the levels that they should")


@safe
def makespan_packed(problem: Problem, pairs: Ints, pair_rate: Floats, steps: Floats) -> Solution:
    """See `makespan`."""
    rows, pairs, rates, (left,) = apart(problem, pairs, pair_rate, steps)
    c = usable(rows)
    program, columns = _program(rows, c, np.maximum(left, 0.0), pairs, rates)
    answer, missing = columns.solve()
    solution = _solution(rows, program, columns, pairs, rates, answer, 0.0)
    assert solution.levels is not None
    busy = (steps > 0) & rows.each(program.part)
    if not busy.any():
        return msgspec.structs.replace(solution, level=0.0)
    least = 1.0 / ((answer.value + missing) * program.unit)
    return msgspec.structs.replace(solution, level=float((steps[busy] / solution.levels[busy]).max()), bound=least)


@safe
def finish_time_packed(
    problem: Problem, pairs: Ints, pair_rate: Floats, steps: Floats, elapsed: Floats, ideal: Floats
) -> Solution:
    """See `finish_time`."""
    rows, pairs, rates, own = apart(problem, pairs, pair_rate, steps, elapsed, ideal)
    c = usable(rows)
    best = c.max(axis=1, initial=0.0)
    for side in (0, 1):
        np.maximum.at(best, pairs[:, side], rates[:, :, side].max(axis=1, initial=0.0))
    busy = (c.max(axis=1, initial=0.0) > 0) & (own[0] > 0) & (own[2] > 0)
    if not busy.any():
        program, columns = _program(rows, c, np.zeros(len(c)), pairs, rates)
        answer, _ = columns.solve()
        return msgspec.structs.replace(_solution(rows, program, columns, pairs, rates, answer, 0.0), level=0.0)
    duties = Duties(*(column[busy] for column in own))
    ratio = float(((duties.elapsed + duties.steps / best[busy]) / duties.ideal).max())
    need = np.zeros(len(c))
    need[busy] = duties.need(ratio)
    program, columns = _program(rows, c, need, pairs, rates)
    for _ in range(_MOST):
        answer, missing = columns.solve()
        if answer.value * program.unit >= _REACHED:
            break
        # Rows weigh what they hold the level down with: no ratio is possible at which they need more than t together.
        weight = program.force(answer)[busy] / need[busy]
        following = _root(duties, weight, (answer.value + missing) * program.unit * float(weight @ need[busy]), ratio)
        if following <= ratio * (1 + 1e-14):
            break
        ratio = following
        need[busy] = duties.need(ratio)
        program.set(np.flatnonzero(busy), need[busy], np.zeros(int(busy.sum())))
    solution = _solution(rows, program, columns, pairs, rates, answer, ratio)
    assert solution.levels is not None
    mine = (steps > 0) & (ideal > 0) & rows.each(program.part)
    reached = (elapsed[mine] + steps[mine] / np.maximum(solution.levels[mine], 1e-300)) / ideal[mine]
    return msgspec.structs.replace(solution, level=float(reached.max()))


def _root(duties: Duties, weight: Floats, level: float, ratio: float) -> float:
    """The ratio, from *ratio* upwards, at which the needs by *weight* come down to *level*: Newton, never too far."""
    for _ in range(_MOST):
        over = float(weight @ duties.need(ratio)) - level
        following = ratio - over / float(weight @ duties.fall(ratio))
        if over <= 0 or following <= ratio * (1 + 1e-15):
            break
        ratio = following
    return ratio


@safe
def total_packed(
    problem: Problem, pairs: Ints, pair_rate: Floats, cost: Floats | None = None, need: Floats | None = None
) -> Solution:
    """See `total`."""
    price = np.ones(len(problem.capacity)) if cost is None else cost
    asked = np.zeros(problem.jobs) if need is None else np.maximum(need, 0.0)
    for alarm, floor in (("", asked), (UNMET, np.zeros(problem.jobs))):
        rows, twos, rates, (base,) = apart(problem, pairs, pair_rate, floor)
        c = usable(rows)
        gpus = rows.count * rows.scale
        if (base[c.max(axis=1, initial=0.0) == 0] > 0).any():
            continue
        worth = rows.count[:, None] * c / price
        program = LevelLp(c, gpus, rows.capacity, np.zeros(len(c)), base, worth=worth)
        columns = Columns(program, rows.count, rows.scale, twos, rates, rates.sum(axis=2) / price)
        try:
            answer, missing = _feasible(columns, base)
        except NoAnswer:
            if alarm:
                raise
            continue
        bound = (answer.value + missing) * program.money
        solution = _solution(rows, program, columns, twos, rates, answer, bound)
        return msgspec.structs.replace(solution, level=answer.value * program.money, alarm=alarm)
    raise NoAnswer("even nothing is too much")


def _feasible(columns: Columns, base: Floats) -> tuple[Answer, float]:
    """The optimum; needs that only pairs can meet have no duals to find columns by, so then all columns go in."""
    try:
        return columns.solve()
    except NoAnswer:
        if not base.any():
            raise
        columns.add_all()
        return columns.solve()


def with_pairs(problem: Problem, pairs: Ints, pair_rate: Floats) -> tuple[Floats, Floats]:
    """Levels per unit of time, alone and together."""
    c = normalised(problem)
    return c, _like(c, problem, pairs, pair_rate)


def _like(c: Floats, problem: Problem, pairs: Ints, pair_rate: Floats) -> Floats:
    """Rates of pairs in the unit in which the rates of rows are *c*."""
    best = usable(problem).max(axis=1, initial=0.0)
    factor = np.divide(c.max(axis=1, initial=0.0), best, out=np.zeros(len(c)), where=best > 0)
    return pair_rate * factor[pairs][:, None, :]


def _program(problem: Problem, c: Floats, pace: Floats, pairs: Ints, together: Floats) -> tuple[LevelLp, Columns]:
    count = problem.count
    program = LevelLp(c, count * problem.scale, problem.capacity, pace)
    return program, Columns(program, count, problem.scale, pairs, together)


def apart(
    problem: Problem, pairs: Ints, pair_rate: Floats, *columns: Floats
) -> tuple[Problem, Ints, Floats, list[Floats]]:
    """The problem with jobs of one row apart that differ in *columns*, and these columns by row.

    Unlike alone, needs of jobs that share with each other cannot be added up by class.
    """
    if problem.of is None:
        return problem, pairs, pair_rate, list(columns)
    first, of = classes.distinct_rows(np.column_stack([problem.of.astype(np.float64), *columns]))
    old = problem.of[first]
    rows = Problem(
        rate=problem.rate[old],
        scale=problem.scale[old],
        weight=problem.weight[old],
        entity=problem.entity[old],
        capacity=problem.capacity,
        of=of,
    )
    twos, source = of_jobs(pairs, old, len(problem.rate))
    return rows, twos, pair_rate[source], [column[first] for column in columns]


def _solution(
    problem: Problem,
    program: LevelLp,
    columns: Columns,
    pairs: Ints,
    together: Floats,
    answer: Answer,
    bound: float,
) -> Solution:
    """Shares by job, scaled down where rounding exceeds time or GPUs. The lowest level of a row that has part in it."""
    rows, types = program.c.shape
    count, capacity = problem.count, problem.capacity
    x = np.where(answer.x > TRACE, answer.x, 0.0)  # in units of what a row needs
    share = x[1 : 1 + rows * types].reshape(rows, types) * program.time[:, None]
    mass = columns.masses(x, len(pairs))
    time = share.sum(axis=1) * count
    for side in (0, 1):
        np.add.at(time, pairs[:, side], mass.sum(axis=1))
    use = (count * problem.scale) @ share + problem.scale[pairs[:, 0]] @ mass
    tight = np.ones(types)
    np.divide(capacity, use, out=tight, where=use > capacity)
    late = np.maximum(np.divide(time, count, out=np.ones(rows), where=count > 0), 1.0)
    share = share * tight / late[:, None]
    mass = mass * tight / np.maximum(late[pairs[:, 0]], late[pairs[:, 1]])[:, None]
    levels = (program.c * share).sum(axis=1)
    for side in (0, 1):
        got = (together[:, :, side] * mass).sum(axis=1) / np.maximum(count[pairs[:, side]], 1.0)
        np.add.at(levels, pairs[:, side], got)
    of = np.arange(rows) if problem.of is None else problem.of
    who, pair_share = between_jobs(pairs, mass, of, rows)
    return Solution(
        share=problem.each(share),
        level=float(levels[program.part].min()) if program.part.any() else 0.0,
        bound=bound,
        prices=np.maximum(answer.dual[:types], 0.0) * program.unit * program.money / program.cap,
        how="highs",
        levels=problem.each(levels),
        pairs=who,
        pair_share=pair_share,
    )
