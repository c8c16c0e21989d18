"""Nash welfare: maximize the geometric mean of levels; or strategy-proof.

With a discount, the shares are strategy-proof.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats
from levada.solve.central import Objective, center
from levada.solve.classes import classify
from levada.solve.fallback import with_fallback
from levada.solve.problem import ShareProblem, Solution, fit, normalised


@with_fallback
def nash(problem: ShareProblem) -> Solution:
    """Maximize the geometric mean of the levels of `max_min`, returned as `level`."""
    rows = classify(problem)
    share, prices = _maximize(normalised(rows), rows.count, rows.scale, rows.capacity)
    levels = (normalised(rows) * share).sum(axis=1)
    mean = _geometric_mean(levels, rows.count)
    return Solution(
        share=rows.per_job(share),
        level=mean,
        bound=mean * (1 + 1e-8),
        prices=prices,
        method="central",
        levels=rows.per_job(levels),
    )


@with_fallback
def strategy_proof(problem: ShareProblem) -> Solution:
    """The shares of `nash`, discounted by the loss that each job causes to others.

    The discount of a job is the product, over all other jobs, of their level with it divided by their level without it:
    one more solve per class. `levels` are discounted, `level` is not.
    """
    rows = classify(problem)
    c, count = normalised(rows), rows.count
    share, prices = _maximize(c, count, rows.scale, rows.capacity)
    levels = (c * share).sum(axis=1)
    discount = np.ones(len(c))
    for row in np.flatnonzero((count > 0) & (levels > 0)).tolist():
        others = count.copy()
        others[row] -= 1
        if others.any():
            without = (c * _maximize(c, others, rows.scale, rows.capacity)[0]).sum(axis=1)
            active = (others > 0) & (without > 0)
            discount[row] = np.exp((others[active] * np.log(levels[active] / without[active])).sum())
    mean = _geometric_mean(levels, count)
    share = share * np.minimum(discount, 1.0)[:, None]
    solution = Solution(
        share=rows.per_job(share), level=mean, bound=mean * (1 + 1e-8), prices=prices, method="central", levels=None
    )
    return msgspec.structs.replace(solution, levels=rows.per_job((c * share).sum(axis=1)))


def _maximize(c: Floats, count: Floats, scale: Floats, capacity: Floats) -> tuple[Floats, Floats]:
    gpus = count * scale
    runnable = (c.max(axis=1, initial=0.0) > 0) & (count > 0)
    if not runnable.any():
        return np.zeros_like(c), np.zeros(len(capacity))
    # The optimum does not depend on the units of levels.
    unit = np.where(runnable, c.max(axis=1, initial=0.0), 1.0)[:, None]
    result = center(c / unit, count, gpus, capacity, Objective(worth=1.0))
    return fit(result.share, gpus, capacity), result.prices


def _geometric_mean(levels: Floats, count: Floats) -> float:
    runnable = (levels > 0) & (count > 0)
    return float(np.exp(count[runnable] @ np.log(levels[runnable]) / count[runnable].sum())) if runnable.any() else 0.0
