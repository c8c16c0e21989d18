"""Water-filling: the lowest level is as high as possible, then the next lowest, and so on.

Levels are those of `max_min`. They are unique, whatever method finds them. No integer program is needed: a row whose
constraint has a dual above 0 is tight in every optimum, so it has reached its end; the others go on from there.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.solve import price
from levada.solve.classes import classify, distinct_rows
from levada.solve.highs import NoAnswer
from levada.solve.levels import LevelLp, Levels
from levada.solve.problem import Problem, Solution, Warm, fit, normalised, proportional, usable
from levada.solve.safe import safe

#: Duals below HiGHS's tolerance are noise.
NOISE = 1e-6


@safe
def leximin(problem: Problem, warm: Warm | None = None) -> Solution:
    """Lexicographically largest levels, the lowest first. `level` is the lowest one, `levels` has all."""
    rows = classify(problem)
    c, gpus = normalised(rows), rows.count * rows.scale
    answer = price.leximin(c, gpus, rows.capacity, warm)
    if answer is None:
        answer = _fill(c, gpus, rows.capacity, warm)
    share, bound, prices, how, kept = answer
    share = fit(share, gpus, rows.capacity)
    levels = (c * share).sum(axis=1)
    part = (gpus > 0) & (c.max(axis=1, initial=0.0) > 0)
    return Solution(
        share=rows.each(share),
        level=float(levels[part].min()) if part.any() else 0.0,
        bound=bound,
        prices=prices,
        how=how,
        warm=kept,
        levels=rows.each(levels),
    )


def _fill(c: Floats, gpus: Floats, capacity: Floats, warm: Warm | None) -> price.Found:
    """Water-filling by HiGHS, one solve per level."""
    program = LevelLp(c, gpus, capacity, np.ones(len(c)), basis=warm.basis if warm else None)
    active = program.part.copy()
    first = found = program.solve()
    kept = Warm(basis=program.model.basis())
    while active.any():
        for row in _final(found, active).tolist():
            program.set(row, 0.0, found.t)
            active[row] = False
        if active.any():
            found = program.solve()
    bound = first.bound if program.part.any() else 0.0
    return found.share, bound, first.prices, "highs", kept


def _final(found: Levels, active: Bools) -> Ints:
    """The active rows that can rise no more."""
    final = np.flatnonzero(active & (found.force > NOISE))
    if not len(final):
        raise NoAnswer("no row holds the level down")
    return final


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
    reference = proportional(rows)
    c = np.divide(usable(rows), reference[:, None], out=np.zeros_like(rows.rate), where=reference[:, None] > 0)
    count, gpus = rows.count, rows.count * rows.scale
    levels = np.zeros(len(c))
    turns = in_turn[rows.entity] & (rows.entity > 0)
    active = (gpus > 0) & (c.max(axis=1, initial=0.0) > 0)
    part = active.copy()
    pace = _pace(rows, entity_weight, turns, active, count)
    program = LevelLp(c, gpus, rows.capacity, pace, basis=warm.basis if warm else None)
    first = found = program.solve()
    kept = Warm(basis=program.model.basis())
    while active.any():
        levels += found.t * pace
        for row in _final(found, active & (pace > 0)).tolist():
            active[row] = False
        pace = _pace(rows, entity_weight, turns, active, count)
        if not active.any():
            break
        for row in np.flatnonzero(part).tolist():
            program.set(row, float(pace[row]), float(levels[row]))
        found = program.solve()
    share = fit(found.share, gpus, rows.capacity)
    levels = (c * share).sum(axis=1)
    sums = np.bincount(rows.entity, levels * count, len(entity_weight))[1:] / entity_weight[1:]
    lowest = sums[np.bincount(rows.entity[part], minlength=len(entity_weight))[1:] > 0]
    return Solution(
        share=rows.each(share),
        level=float(lowest.min()) if len(lowest) else float(levels[part].min()) if part.any() else 0.0,
        bound=float("inf"),
        prices=first.prices,
        how="highs",
        warm=kept,
        levels=rows.each(levels),
    )


def _with_turns(problem: Problem, in_turn: Bools) -> Problem:
    """The problem by classes; jobs that are served in turn are each a row of their own."""
    entity = problem.each(problem.entity)
    turn = np.where(in_turn[entity] & (entity > 0), np.arange(1, len(entity) + 1), 0)
    row = classify(problem).of
    assert row is not None
    first, of = distinct_rows(np.column_stack([row, turn]).astype(np.float64))
    chosen = first if problem.of is None else problem.of[first]
    return Problem(
        rate=problem.rate[chosen],
        scale=problem.scale[chosen],
        weight=problem.weight[chosen],
        entity=problem.entity[chosen],
        capacity=problem.capacity,
        of=of,
    )


def _pace(rows: Problem, entity_weight: Floats, turns: Bools, active: Bools, count: Floats) -> Floats:
    """How much each row rises with the common level: its part of its entity's weight, over its scale."""
    entity = rows.entity
    weights = np.bincount(entity, rows.weight * count * active, len(entity_weight))[entity]
    portion = np.divide(entity_weight[entity] * rows.weight, weights, out=np.zeros(len(entity)), where=weights > 0)
    portion = np.where(entity == 0, rows.weight, portion) * active
    waiting = np.flatnonzero(turns & active)
    portion[turns] = 0.0
    # Rows stand in the order of their jobs: the first of each entity is the one whose turn it is.
    owners, place = np.unique(entity[waiting], return_index=True)
    portion[waiting[place]] = entity_weight[owners]
    return portion / rows.scale
