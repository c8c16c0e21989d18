"""Water-filling: the lowest level is as high as possible, then the next lowest, and so on.

Levels are those of `max_min`. They are unique, whatever method finds them.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats
from levada.kernels import classes
from levada.solve import price
from levada.solve.classes import classify
from levada.solve.entities import Entities, turns
from levada.solve.filling import fill
from levada.solve.levels import LevelLp
from levada.solve.pairs import alone
from levada.solve.problem import Problem, Solution, Warm, fit, normalised, relative
from levada.solve.safe import safe


@safe
def leximin(problem: Problem, warm: Warm | None = None) -> Solution:
    """Lexicographically largest levels, the lowest first. `level` is the lowest one, `levels` has all."""
    rows = classify(problem)
    found = price.leximin(rows, warm)
    return found if found is not None else _by_programs(rows, warm)


def _by_programs(rows: Problem, warm: Warm | None) -> Solution:
    c, gpus = normalised(rows), rows.count * rows.scale
    share, bound, prices, kept = _fill(c, gpus, rows.capacity, warm)
    share = fit(share, gpus, rows.capacity)
    levels = (c * share).sum(axis=1)
    part = (gpus > 0) & (c.max(axis=1, initial=0.0) > 0)
    return Solution(
        share=rows.each(share),
        level=float(levels[part].min()) if part.any() else 0.0,
        bound=bound,
        prices=prices,
        how="highs",
        warm=kept,
        levels=rows.each(levels),
    )


def _fill(c: Floats, gpus: Floats, capacity: Floats, warm: Warm | None) -> tuple[Floats, float, Floats, Warm]:
    """Water-filling by HiGHS."""
    program = LevelLp(c, gpus, capacity, np.ones(len(c)), basis=warm.basis if warm else None)
    columns = alone(program)
    answer, _ = columns.solve()
    first, kept = program.read(answer), Warm(basis=program.model.basis())
    bound = first.bound if program.part.any() else 0.0
    return program.read(fill(columns, answer).answer).share, bound, first.prices, kept


@safe
def hierarchical(
    problem: Problem, entity_weight: Floats, fifo: Bools | None = None, warm: Warm | None = None
) -> Solution:
    """Water-filling among entities by *entity_weight*, each of which passes its part on to its own jobs.

    Both arrays are indexed by the problem's `entity`. Inside an entity the jobs share by weight, or, where *fifo* says
    so, the first job that can still rise takes all. Jobs of nobody (0) take part on their own, with their own weight.
    `levels` are rates over proportional rates, and `level` the lowest sum of these in an entity over its weight.
    """
    in_turn = np.zeros(len(entity_weight), np.bool_) if fifo is None else np.asarray(fifo, np.bool_)
    rows = _with_turns(problem, in_turn)
    entities = Entities(rows, entity_weight, in_turn)
    c, gpus = relative(rows), rows.count * rows.scale
    part = (gpus > 0) & (c.max(axis=1, initial=0.0) > 0)
    program = LevelLp(c, gpus, rows.capacity, entities.pace(part), basis=warm.basis if warm else None)
    columns = alone(program)
    answer, _ = columns.solve()
    first, kept = program.read(answer), Warm(basis=program.model.basis())
    share = fit(program.read(fill(columns, answer, entities.pace).answer).share, gpus, rows.capacity)
    levels = (c * share).sum(axis=1)
    return Solution(
        share=rows.each(share),
        level=entities.lowest(levels, part),
        bound=float("inf"),
        prices=first.prices,
        how="highs",
        warm=kept,
        levels=rows.each(levels),
    )


def _with_turns(problem: Problem, in_turn: Bools) -> Problem:
    """The problem by classes; jobs that are served in turn are each a row of their own."""
    row = classify(problem).of
    assert row is not None
    first, of = classes.distinct_rows(np.column_stack([row, turns(problem, in_turn)]).astype(np.float64))
    chosen = first if problem.of is None else problem.of[first]
    return Problem(
        rate=problem.rate[chosen],
        scale=problem.scale[chosen],
        weight=problem.weight[chosen],
        entity=problem.entity[chosen],
        capacity=problem.capacity,
        of=of,
    )
