"""Maximize total throughput, or throughput per cost."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats
from levada.solve.class_split import split_classes
from levada.solve.classes import classify
from levada.solve.fallback import with_fallback
from levada.solve.highs import NoSolution
from levada.solve.problem import ShareProblem, Solution, WarmStart, fit, usable
from levada.solve.requirements import class_speeds, max_total

#: Alarm of a solution that ignores the required rates.
UNMET = "the required rates cannot all be reached; deadlines are ignored"


@with_fallback
def total(
    problem: ShareProblem, cost: Floats | None = None, need: Floats | None = None, warm: WarmStart | None = None
) -> Solution:
    """Maximize the sum of rate / cost over jobs and types, with a minimum rate *need* per job (0 = none).

    *cost* is per type. If the minimum rates are infeasible, all are ignored, with an alarm.
    """
    rows = problem
    if problem.of is None:
        ones = np.ones(len(problem.rate))
        rows = classify(msgspec.structs.replace(problem, weight=ones, entity=np.zeros(len(ones), np.int64)))
    assert rows.of is not None
    rate, count = usable(rows), rows.count
    worth = rate if cost is None else rate / cost
    min_rate = np.zeros(rows.jobs) if need is None else np.maximum(need, 0.0)
    speeds = class_speeds(rate, rows.scale, count, rows.capacity, rows.of)
    alarm = ""
    plan = None
    if (min_rate <= rate.max(axis=1, initial=0.0)[rows.of] * (1 + 1e-12)).all():
        plan = max_total(speeds, worth, min_rate, warm.basis if warm else None)
    if plan is None:
        alarm, min_rate = UNMET, np.zeros(rows.jobs)
        plan = max_total(speeds, worth, min_rate)
    if plan is None:
        raise NoSolution("the program is infeasible without required rates")
    if min_rate.any():
        share = split_classes(rate, plan.mass, rows.of, min_rate)
    else:
        share = rows.per_job(plan.mass / np.maximum(count, 1.0)[:, None])
    share = fit(share, rows.scale[rows.of], rows.capacity)
    # Any prices prove a bound: the dual of a job's time pays the gain of a unit of time beyond its price.
    spare = np.where(rate > 0, worth - rows.scale[:, None] * plan.prices, 0.0).max(axis=1, initial=0.0)
    return Solution(
        share=share,
        level=float((rows.per_job(worth) * share).sum()),
        bound=float(plan.value)
        if min_rate.any()
        else float(plan.prices @ rows.capacity + count @ np.maximum(spare, 0)),
        prices=plan.prices,
        method="highs",
        alarm=alarm,
        warm=WarmStart(basis=plan.basis),
        levels=(rows.per_job(rate) * share).sum(axis=1),
    )
