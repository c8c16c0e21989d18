"""The best geometric mean of levels (Nash welfare), and the same discounted so that no job gains by lying."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats
from levada.solve.central import centre
from levada.solve.classes import classify
from levada.solve.problem import Problem, Solution, fit, normalised
from levada.solve.safe import safe


@safe
def nash(problem: Problem) -> Solution:
    """The largest geometric mean of the levels of `max_min`, as `level`."""
    rows = classify(problem)
    share, prices = _best(normalised(rows), rows.count, rows.scale, rows.capacity)
    levels = (normalised(rows) * share).sum(axis=1)
    mean = _geometric(levels, rows.count)
    return Solution(
        share=rows.each(share),
        level=mean,
        bound=mean * (1 + 1e-8),
        prices=prices,
        how="central",
        levels=rows.each(levels),
    )


@safe
def strategy_proof(problem: Problem) -> Solution:
    """The shares of `nash`, each job's times what its being there leaves the others. `level` is undiscounted.

    The discount of a job is the product, over all others, of the level with it over the level without it: one solve
    more per class. `levels` are discounted.
    """
    rows = classify(problem)
    c, count = normalised(rows), rows.count
    share, prices = _best(c, count, rows.scale, rows.capacity)
    levels = (c * share).sum(axis=1)
    discount = np.ones(len(c))
    for row in np.flatnonzero((count > 0) & (levels > 0)).tolist():
        others = count.copy()
        others[row] -= 1
        if others.any():
            without = (c * _best(c, others, rows.scale, rows.capacity)[0]).sum(axis=1)
            there = (others > 0) & (without > 0)
            discount[row] = np.exp((others[there] * np.log(levels[there] / without[there])).sum())
    mean = _geometric(levels, count)
    share = share * np.minimum(discount, 1.0)[:, None]
    solution = Solution(
        share=rows.each(share), level=mean, bound=mean * (1 + 1e-8), prices=prices, how="central", levels=None
    )
    return msgspec.structs.replace(solution, levels=rows.each((c * share).sum(axis=1)))


def _best(c: Floats, count: Floats, scale: Floats, capacity: Floats) -> tuple[Floats, Floats]:
    gpus = count * scale
    part = (c.max(axis=1, initial=0.0) > 0) & (count > 0)
    if not part.any():
        return np.zeros_like(c), np.zeros(len(capacity))
    # Logarithms do not care in which unit a level is.
    unit = np.where(part, c.max(axis=1, initial=0.0), 1.0)[:, None]
    found = centre(c / unit, count, gpus, capacity, worth=1.0)
    return fit(found.share, gpus, capacity), found.prices


def _geometric(levels: Floats, count: Floats) -> float:
    part = (levels > 0) & (count > 0)
    return float(np.exp(count[part] @ np.log(levels[part]) / count[part].sum())) if part.any() else 0.0
