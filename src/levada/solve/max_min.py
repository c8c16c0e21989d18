"""Max-min fairness (LAS): maximize the lowest level.

The level of a job is scale / (weight x proportional rate) x its rate. Capacity beyond the lowest level is distributed
arbitrarily; `leximin` distributes it fairly. Policies that ignore GPU types pass rates of 1.
"""

from __future__ import annotations

import numpy as np

from levada.solve import price
from levada.solve.classes import classify
from levada.solve.fallback import with_fallback
from levada.solve.levels import LevelLp
from levada.solve.problem import ShareProblem, Solution, WarmStart, fit, normalised


@with_fallback
def max_min(problem: ShareProblem, warm: WarmStart | None = None) -> Solution:
    """Maximize the lowest level. Jobs that cannot run get nothing and do not limit others."""
    rows = classify(problem)
    c, count = normalised(rows), rows.count
    gpus = count * rows.scale
    slope = np.ones(len(c))
    result = price.max_level(c, gpus, rows.capacity, slope, warm)
    if result is None:
        program = LevelLp(c, gpus, rows.capacity, slope, basis=warm.basis if warm else None)
        optimum = program.solve()
        result = optimum.share, optimum.bound, optimum.prices, "highs", WarmStart(basis=program.model.basis())
    share, bound, prices, method, next_warm = result
    share = fit(share, gpus, rows.capacity)
    levels = (c * share).sum(axis=1)
    runnable = (gpus > 0) & (c.max(axis=1, initial=0.0) > 0)
    return Solution(
        share=rows.per_job(share),
        level=float(levels[runnable].min()) if runnable.any() else 0.0,
        bound=bound if runnable.any() else 0.0,
        prices=prices,
        method=method,
        warm=next_warm,
        levels=rows.per_job(levels),
    )
