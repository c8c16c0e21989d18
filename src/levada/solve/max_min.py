"""Max-min fairness (LAS): the lowest level is as high as possible.

The level of a job is scale / (weight x proportional rate) x its rate. What is left once the lowest level is settled
goes anywhere: `leximin` says where it should go. For policies that see no difference between GPU types, give rates
of 1.
"""

from __future__ import annotations

import numpy as np

from levada.solve import price
from levada.solve.classes import classify
from levada.solve.levels import LevelLp
from levada.solve.problem import Problem, Solution, Warm, fit, normalised
from levada.solve.safe import safe


@safe
def max_min(problem: Problem, warm: Warm | None = None) -> Solution:
    """The largest lowest level. Jobs that can run nowhere get nothing and hold nobody back."""
    rows = classify(problem)
    c, count = normalised(rows), rows.count
    gpus = count * rows.scale
    pace = np.ones(len(c))
    answer = price.max_level(c, gpus, rows.capacity, pace, warm)
    if answer is None:
        program = LevelLp(c, gpus, rows.capacity, pace, basis=warm.basis if warm else None)
        found = program.solve()
        answer = found.share, found.bound, found.prices, "highs", Warm(basis=program.model.basis())
    share, bound, prices, how, kept = answer
    share = fit(share, gpus, rows.capacity)
    levels = (c * share).sum(axis=1)
    part = (gpus > 0) & (c.max(axis=1, initial=0.0) > 0)
    return Solution(
        share=rows.each(share),
        level=float(levels[part].min()) if part.any() else 0.0,
        bound=bound if part.any() else 0.0,
        prices=prices,
        how=how,
        warm=kept,
        levels=rows.each(levels),
    )
