"""Maximize total speed while each job keeps a fraction of its leximin rate.

Leximin spreads each job over slow and fast types. If types differ much, total throughput drops, queues grow, and all
jobs wait longer. Here each job keeps a fraction of its leximin rate, and the remaining capacity goes to the jobs with
the largest advantage on each type.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.solve import price
from levada.solve.fallback import with_fallback
from levada.solve.groups import Groups, group_jobs, split_groups
from levada.solve.highs import Lp, LpModel
from levada.solve.leximin import leximin
from levada.solve.problem import ShareProblem, Solution, fit, normalised, usable

#: Alarm of a solution that has leximin shares instead.
FAIR_INSTEAD = "maximizing speed above the floor failed: using leximin shares"


@with_fallback
def efficient(problem: ShareProblem, floor: float, favour: Floats | None = None) -> Solution:
    """Maximize total speed, where each job reaches the fraction *floor* of its leximin rate.

    The speed of a job is relative to its fastest type and counts by GPUs, weight and *favour* (jobs,). The favour does
    not change floors: near 1, it breaks ties between jobs of equal value. `level` is the lowest level, as in `leximin`.
    Equal jobs with equal favour get equal shares.
    """
    groups = group_jobs(problem, favour)
    solution = price.efficient(problem, floor, groups)
    return solution if solution is not None else _solve_lp(problem, floor, groups)


def _solve_lp(problem: ShareProblem, floor: float, groups: Groups) -> Solution:
    fair = leximin(problem)
    if fair.method == "equal":
        return fair
    rows = split_groups(problem, groups)
    speed = usable(rows)
    max_rate = speed.max(axis=1, initial=0.0)
    speed = np.divide(speed, max_rate[:, None], out=np.zeros_like(speed), where=max_rate[:, None] > 0)
    min_speed = floor * (speed * _total_share(groups.of, fair.share, len(rows.rate))).sum(axis=1)
    optimum = _maximize(rows, speed, speed * (rows.weight * groups.favour * rows.scale)[:, None], min_speed)
    if optimum is None:
        return msgspec.structs.replace(fair, alarm=FAIR_INSTEAD)
    mass, prices = optimum
    count = rows.count
    share = fit(mass / np.maximum(count, 1.0)[:, None], rows.scale * count, rows.capacity)
    levels = (normalised(rows) * share).sum(axis=1)
    runs = (max_rate > 0) & (count > 0)
    return Solution(
        share=rows.per_job(share),
        level=float(levels[runs].min()) if runs.any() else 0.0,
        bound=fair.bound,
        prices=prices,
        method="highs",
        levels=rows.per_job(levels),
    )


def _total_share(of: Ints, share: Floats, rows: int) -> Floats:
    """(rows, types): total share of the jobs of each row."""
    total = np.zeros((rows, share.shape[1]))
    np.add.at(total, of, share)
    return total


def _maximize(rows: ShareProblem, speed: Floats, worth: Floats, min_speed: Floats) -> tuple[Floats, Floats] | None:
    """Time by row and type with maximal total *worth* and at least *min_speed* per row; and prices.

    A column is a row on a type. It uses GPUs of the type and time of the row, and adds to the speed of the row.
    """
    count, types = speed.shape
    index = np.empty((count, types, 3), np.int64)
    index[:, :, 0] = np.arange(types)
    index[:, :, 1] = types + np.arange(count)[:, None]
    index[:, :, 2] = types + count + np.arange(count)[:, None]
    value = np.empty((count, types, 3))
    value[:, :, 0] = rows.scale[:, None]
    value[:, :, 1] = 1.0
    value[:, :, 2] = speed
    program = Lp(
        cost=worth.ravel(),
        lower=np.zeros(count * types),
        upper=np.where(speed.ravel() > 0, np.inf, 0.0),
        # Slightly less than required, so that rounding does not make the program infeasible.
        row_lower=np.concatenate([np.full(types + count, -np.inf), min_speed * (1 - 1e-9)]),
        row_upper=np.concatenate([rows.capacity, rows.count, np.full(count, np.inf)]),
        start=np.arange(0, 3 * count * types + 1, 3),
        index=index.ravel(),
        value=value.ravel(),
    )
    solution = LpModel(program).solve()
    if solution is None:
        return None
    return np.maximum(solution.x, 0.0).reshape(count, types), np.maximum(solution.dual[:types], 0.0)
