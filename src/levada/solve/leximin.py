"""Leximin (water-filling): maximize the lowest level, then the next, etc.

Levels are those of `max_min`; they are unique.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats
from levada.kernels import classes
from levada.solve import price
from levada.solve.classes import classify
from levada.solve.entities import Entities, fifo_numbers
from levada.solve.fallback import with_fallback
from levada.solve.levels import LevelLp
from levada.solve.pairs import no_pairs
from levada.solve.problem import ShareProblem, Solution, WarmStart, fit, normalised, relative
from levada.solve.water_filling import fill


@with_fallback
def leximin(problem: ShareProblem, warm: WarmStart | None = None) -> Solution:
    """Maximize the sorted levels lexicographically. `level` is the lowest level, `levels` has all."""
    rows = classify(problem)
    solution = price.leximin(rows, warm)
    return solution if solution is not None else _solve_lp(rows, warm)


def _solve_lp(rows: ShareProblem, warm: WarmStart | None) -> Solution:
    c, gpus = normalised(rows), rows.count * rows.scale
    share, bound, prices, next_warm = _fill(c, gpus, rows.capacity, warm)
    share = fit(share, gpus, rows.capacity)
    levels = (c * share).sum(axis=1)
    runnable = (gpus > 0) & (c.max(axis=1, initial=0.0) > 0)
    return Solution(
        share=rows.per_job(share),
        level=float(levels[runnable].min()) if runnable.any() else 0.0,
        bound=bound,
        prices=prices,
        method="highs",
        warm=next_warm,
        levels=rows.per_job(levels),
    )


def _fill(c: Floats, gpus: Floats, capacity: Floats, warm: WarmStart | None) -> tuple[Floats, float, Floats, WarmStart]:
    """Water-filling with HiGHS: shares, bound, prices and warm start."""
    program = LevelLp(c, gpus, capacity, np.ones(len(c)), basis=warm.basis if warm else None)
    columns = no_pairs(program)
    answer, _ = columns.solve()
    first, next_warm = program.read(answer), WarmStart(basis=program.model.basis())
    bound = first.bound if program.runnable.any() else 0.0
    return program.read(fill(columns, answer).solution).share, bound, first.prices, next_warm


@with_fallback
def hierarchical(
    problem: ShareProblem, entity_weight: Floats, fifo: Bools | None = None, warm: WarmStart | None = None
) -> Solution:
    """Water-filling among entities by *entity_weight*, then among the jobs of each entity.

    Both arrays are indexed by the problem's `entity`. The jobs of an entity share by weight or, if *fifo*, the first
    job that can still rise takes everything. Each job without entity (0) competes with its own weight. `levels` are
    rates divided by proportional rates, `level` is the lowest sum of these in an entity divided by its weight.
    """
    is_fifo = np.zeros(len(entity_weight), np.bool_) if fifo is None else np.asarray(fifo, np.bool_)
    rows = _split_fifo(problem, is_fifo)
    entities = Entities(rows, entity_weight, is_fifo)
    c, gpus = relative(rows), rows.count * rows.scale
    runnable = (gpus > 0) & (c.max(axis=1, initial=0.0) > 0)
    program = LevelLp(c, gpus, rows.capacity, entities.slopes(runnable), basis=warm.basis if warm else None)
    columns = no_pairs(program)
    answer, _ = columns.solve()
    first, next_warm = program.read(answer), WarmStart(basis=program.model.basis())
    share = fit(program.read(fill(columns, answer, entities.slopes).solution).share, gpus, rows.capacity)
    levels = (c * share).sum(axis=1)
    return Solution(
        share=rows.per_job(share),
        level=entities.lowest(levels, runnable),
        bound=float("inf"),
        prices=first.prices,
        method="highs",
        warm=next_warm,
        levels=rows.per_job(levels),
    )


def _split_fifo(problem: ShareProblem, fifo: Bools) -> ShareProblem:
    """The problem by classes; each job of a FIFO entity has its own row."""
    row = classify(problem).of
    assert row is not None
    first, of = classes.distinct_rows(np.column_stack([row, fifo_numbers(problem, fifo)]).astype(np.float64))
    chosen = first if problem.of is None else problem.of[first]
    return ShareProblem(
        rate=problem.rate[chosen],
        scale=problem.scale[chosen],
        weight=problem.weight[chosen],
        entity=problem.entity[chosen],
        capacity=problem.capacity,
        of=of,
    )
