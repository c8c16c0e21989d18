"""The most steps per second over all jobs, or the most steps per cost."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats
from levada.solve.classes import classify
from levada.solve.highs import NoAnswer
from levada.solve.problem import Problem, Solution, Warm, fit, usable
from levada.solve.requirements import best_total, speeds
from levada.solve.safe import safe
from levada.solve.split import shadow

#: What a solution says when the needs were left out.
UNMET = "the rates that jobs need cannot all be reached: solved without them"


@safe
def total(
    problem: Problem, cost: Floats | None = None, need: Floats | None = None, warm: Warm | None = None
) -> Solution:
    """The largest sum of rate / cost over jobs and types, where each job reaches the rate it *needs* (0 = none).

    *cost* is per type, *need* per job. Needs that cannot be met together are all left out, and the alarm says so.
    """
    rows = problem
    if problem.of is None:
        ones = np.ones(len(problem.rate))
        rows = classify(msgspec.structs.replace(problem, weight=ones, entity=np.zeros(len(ones), np.int64)))
    assert rows.of is not None
    rate, count = usable(rows), rows.count
    worth = rate if cost is None else rate / cost
    asked = np.zeros(rows.jobs) if need is None else np.maximum(need, 0.0)
    given = speeds(rate, rows.scale, count, rows.capacity, rows.of)
    alarm = ""
    plan = None
    if (asked <= rate.max(axis=1, initial=0.0)[rows.of] * (1 + 1e-12)).all():
        plan = best_total(given, worth, asked, warm.basis if warm else None)
    if plan is None:
        alarm, asked = UNMET, np.zeros(rows.jobs)
        plan = best_total(given, worth, asked)
    if plan is None:
        raise NoAnswer("even nothing is too much")
    if asked.any():
        share = shadow(rate, plan.mass, rows.of, asked)
    else:
        share = rows.each(plan.mass / np.maximum(count, 1.0)[:, None])
    share = fit(share, rows.scale[rows.of], rows.capacity)
    # Any prices prove a bound: what a unit of time brings beyond its price is paid by the job's own time.
    spare = np.where(rate > 0, worth - rows.scale[:, None] * plan.prices, 0.0).max(axis=1, initial=0.0)
    return Solution(
        share=share,
        level=float((rows.each(worth) * share).sum()),
        bound=float(plan.value) if asked.any() else float(plan.prices @ rows.capacity + count @ np.maximum(spare, 0)),
        prices=plan.prices,
        how="highs",
        alarm=alarm,
        warm=Warm(basis=plan.basis),
        levels=(rows.each(rate) * share).sum(axis=1),
    )
