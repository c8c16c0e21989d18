"""As much speed in all as possible, while nobody falls far below what is fair.

Leximin shares spread every job over slow and fast types alike; where types differ much, the cluster then does less in
all, queues grow, and everybody waits longer. Here each job keeps a part of the rate that leximin gives it, and the rest
goes where jobs lose least by not being elsewhere.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.solve import price
from levada.solve.groups import Groups, apart, groups_of
from levada.solve.highs import Lp, Model
from levada.solve.leximin import leximin
from levada.solve.problem import Problem, Solution, fit, normalised, usable
from levada.solve.safe import safe

#: What a solution says that is leximin's.
FAIR_INSTEAD = "the most speed above the floor could not be found: leximin shares stand in for it"


@safe
def efficient(problem: Problem, floor: float, favour: Floats | None = None) -> Solution:
    """The most GPUs' worth of speed, each job's compared with its best, where all reach *floor* of their leximin rate.

    The speed of a job counts by its weight, and by the *favour* it finds (jobs,). That changes nobody's floor: a little
    more or less than 1, it says who comes first where speed is worth the same. `level` is the lowest level, as
    `leximin` has it. Equal jobs that are favoured alike get equal shares.
    """
    groups = groups_of(problem, favour)
    found = price.efficient(problem, floor, groups)
    return found if found is not None else _by_programs(problem, floor, groups)


def _by_programs(problem: Problem, floor: float, groups: Groups) -> Solution:
    fair = leximin(problem)
    if fair.how == "equal":
        return fair
    rows = apart(problem, groups)
    speed = usable(rows)
    best = speed.max(axis=1, initial=0.0)
    speed = np.divide(speed, best[:, None], out=np.zeros_like(speed), where=best[:, None] > 0)
    owed = floor * (speed * _together(groups.of, fair.share, len(rows.rate))).sum(axis=1)
    found = _most(rows, speed, speed * (rows.weight * groups.favour * rows.scale)[:, None], owed)
    if found is None:
        return msgspec.structs.replace(fair, alarm=FAIR_INSTEAD)
    mass, prices = found
    count = rows.count
    share = fit(mass / np.maximum(count, 1.0)[:, None], rows.scale * count, rows.capacity)
    levels = (normalised(rows) * share).sum(axis=1)
    runs = (best > 0) & (count > 0)
    return Solution(
        share=rows.each(share),
        level=float(levels[runs].min()) if runs.any() else 0.0,
        bound=fair.bound,
        prices=prices,
        how="highs",
        levels=rows.each(levels),
    )


def _together(of: Ints, share: Floats, rows: int) -> Floats:
    """(rows, types): the time of all jobs of a row together."""
    total = np.zeros((rows, share.shape[1]))
    np.add.at(total, of, share)
    return total


def _most(rows: Problem, speed: Floats, worth: Floats, owed: Floats) -> tuple[Floats, Floats] | None:
    """Time by row and type with the largest total *worth* where each row has the speed it is *owed*; and prices.

    A column is one row on one type; it takes GPUs of the type and time of the row's jobs, and adds to the row's speed.
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
        # A hair less than owed: else rounding could ask for more than there is.
        row_lower=np.concatenate([np.full(types + count, -np.inf), owed * (1 - 1e-9)]),
        row_upper=np.concatenate([rows.capacity, rows.count, np.full(count, np.inf)]),
        start=np.arange(0, 3 * count * types + 1, 3),
        index=index.ravel(),
        value=value.ravel(),
    )
    answer = Model(program).solve()
    if answer is None:
        return None
    return np.maximum(answer.x, 0.0).reshape(count, types), np.maximum(answer.dual[:types], 0.0)
