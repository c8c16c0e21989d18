"""As much speed in all as possible, while nobody falls far below what is fair.

Leximin shares spread every job over slow and fast types alike; where types differ much, the cluster then does less in
all, queues grow, and everybody waits longer. Here each job keeps a part of the rate that leximin gives it, and the rest
goes where jobs lose least by not being elsewhere.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats
from levada.solve.leximin import leximin
from levada.solve.problem import Problem, Solution, normalised, usable
from levada.solve.safe import safe
from levada.solve.total import total


@safe
def efficient(problem: Problem, favour: Floats, floor: float) -> Solution:
    """The most GPUs' worth of speed, each job's compared with its best, where all reach *floor* of their leximin rate.

    *favour* weighs the speed of each row, besides its weight. `level` is the lowest level, as `leximin` has it.
    """
    fair = leximin(problem)
    if fair.how == "equal":
        return fair
    rate = usable(problem)
    best = rate.max(axis=1, initial=0.0)
    worth = np.divide(favour * problem.weight * problem.scale, best, out=np.zeros_like(best), where=best > 0)
    speeds = msgspec.structs.replace(problem, rate=rate * worth[:, None])
    need = floor * (problem.each(speeds.rate) * fair.share).sum(axis=1)
    found = total(speeds, need=need)
    if found.how == "equal" or found.alarm:
        return fair
    levels = (problem.each(normalised(problem)) * found.share).sum(axis=1)
    runs = problem.each(best) > 0
    return msgspec.structs.replace(
        found, level=float(levels[runs].min(initial=np.inf)) if runs.any() else 0.0, bound=fair.bound, levels=levels
    )
