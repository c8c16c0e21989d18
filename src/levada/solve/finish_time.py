"""Finish-time fairness and makespan: minimize the largest finish-time ratio.

The ratio is finish time to ideal finish time. A ratio gives each job a required rate, and the minimal load for these
rates is a linear program by classes (`requirements`). If the load is above 1, its prices prove that the ratio is too
small: at these prices, the cost of all required rates is a convex decreasing function of the ratio, and Newton's method
finds where it equals the value of the cluster. Ratios only increase, so the first feasible one is minimal.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.solve import price
from levada.solve.class_split import split_classes
from levada.solve.classes import classify
from levada.solve.fallback import with_fallback
from levada.solve.highs import NoSolution
from levada.solve.problem import ShareProblem, Solution, WarmStart, fit, usable
from levada.solve.requirements import ClassSpeeds, class_speeds, min_load

#: A load up to this is feasible but for rounding.
_FULL = 1 + 1e-9
#: Significant binary digits of shares; the rest is rounding.
_DIGITS = 44
#: Maximum number of ratios; never reached, since prices are vertices of a polyhedron and none repeats.
_MAX_RATIOS = 200


class RemainingWork(msgspec.Struct, frozen=True):
    """Remaining steps and times of unfinished runnable jobs."""

    steps: Floats
    elapsed: Floats
    ideal: Floats

    def required_rate(self, ratio: float) -> Floats:
        """The rate that each job needs to finish within *ratio*."""
        return self.steps / (ratio * self.ideal - self.elapsed)

    def rate_slope(self, ratio: float) -> Floats:
        """The derivative of `required_rate`, below 0."""
        return -self.steps * self.ideal / (ratio * self.ideal - self.elapsed) ** 2


@with_fallback
def finish_time(
    problem: ShareProblem, steps: Floats, elapsed: Floats, ideal: Floats, warm: WarmStart | None = None
) -> Solution:
    """Minimize the largest ratio (elapsed + steps / rate) / ideal over jobs; arrays are per job, times in seconds.

    *steps* are the remaining steps, *elapsed* the time since submission, *ideal* the time from submission to completion
    in an isolated part of the cluster. `level` is the ratio. Finished jobs and jobs that cannot run get nothing.
    """
    rows = _by_speed(problem)
    assert rows.of is not None
    rate, of, jobs = usable(rows), rows.of, rows.jobs
    max_rate = rate.max(axis=1, initial=0.0)[of]
    part = np.flatnonzero((max_rate > 0) & (steps > 0) & (ideal > 0))
    if not len(part):
        return _solution(rows, np.zeros((jobs, rate.shape[1])), 0.0, 0.0, np.zeros(rate.shape[1]), "none", None)
    remaining = RemainingWork(steps[part], elapsed[part], ideal[part])
    classes = class_speeds(
        rate, rows.scale, np.bincount(of[part], minlength=len(rate)).astype(float), rows.capacity, of[part]
    )
    # The ratio of a job that runs alone on its fastest type is a lower bound.
    start = float(((remaining.elapsed + remaining.steps / max_rate[part]) / remaining.ideal).max())
    result = price.least_ratio(classes, remaining.steps, remaining.elapsed, remaining.ideal, start, warm)
    if result is None:
        result = _newton(classes, remaining, start, warm)
    mass, ratio, prices, method, next_warm = result
    share = np.zeros((jobs, rate.shape[1]))
    required = np.minimum(remaining.required_rate(ratio), max_rate[part])
    required = np.minimum(_scale_to_mass(rate, mass, of[part], required), max_rate[part])
    # Equal jobs must get equal shares: rounding in the split must not break ties.
    share[part] = _rounded(split_classes(rate, mass, of[part], required))
    share = fit(share, rows.scale[of], rows.capacity)
    reached = (rate[of[part]] * share[part]).sum(axis=1)
    level = float(((remaining.elapsed + remaining.steps / np.maximum(reached, 1e-300)) / remaining.ideal).max())
    return _solution(rows, share, level, ratio, prices, method, next_warm)


def _solution(
    rows: ShareProblem, share: Floats, level: float, bound: float, prices: Floats, method: str, warm: WarmStart | None
) -> Solution:
    levels = (rows.rate[rows.of] * share).sum(axis=1)
    return Solution(share=share, level=level, bound=bound, prices=prices, method=method, warm=warm, levels=levels)


@with_fallback
def makespan(problem: ShareProblem, steps: Floats, warm: WarmStart | None = None) -> Solution:
    """Minimize the time in seconds, returned as `level`, until all jobs have done their *steps*."""
    jobs = problem.jobs
    return finish_time(problem, steps, np.zeros(jobs), np.ones(jobs), warm)


def _rounded(share: Floats) -> Floats:
    mantissa, exponent = np.frexp(share)
    rounded: Floats = np.ldexp(np.round(mantissa * 2.0**_DIGITS), exponent - _DIGITS)
    return rounded


def _scale_to_mass(rate: Floats, mass: Floats, of: Ints, need: Floats) -> Floats:
    """Scale rates to the total of their class; otherwise its last job would get the whole difference."""
    available, required = (rate * mass).sum(axis=1), np.bincount(of, need, len(rate))
    return need * np.divide(available, required, out=np.ones(len(rate)), where=required > 0)[of]


def _by_speed(problem: ShareProblem) -> ShareProblem:
    """The problem by classes of equal rates and scale; weight and entity have no effect here."""
    if problem.of is not None:
        return problem
    rows = len(problem.rate)
    return classify(msgspec.structs.replace(problem, weight=np.ones(rows), entity=np.zeros(rows, np.int64)))


def _newton(classes: ClassSpeeds, remaining: RemainingWork, ratio: float, warm: WarmStart | None) -> price.PriceResult:
    """Minimize the ratio from *ratio* upwards with HiGHS."""
    basis = warm.basis if warm else None
    # Rounding must not require more than the fastest type gives: a job may have little left after a long time.
    max_rate = classes.rate.max(axis=1, initial=0.0)[classes.of]
    for _ in range(_MAX_RATIOS):
        plan = min_load(classes, np.minimum(remaining.required_rate(ratio), max_rate), basis)
        if plan is None:
            raise NoSolution("a job needs a higher rate than that of its fastest type")
        basis = plan.basis
        if plan.value <= _FULL:
            return plan.mass / max(plan.value, 1.0), ratio, plan.prices, "highs", WarmStart(basis=basis)
        following = affordable_ratio(classes, remaining, plan.prices, ratio)
        if following <= ratio * (1 + 1e-13):
            return plan.mass / plan.value, ratio, plan.prices, "highs", WarmStart(basis=basis)
        ratio = following
    raise NoSolution("the search for the minimal ratio did not converge")


def affordable_ratio(classes: ClassSpeeds, remaining: RemainingWork, prices: Floats, ratio: float) -> float:
    """The ratio, at least *ratio*, at which all required rates cost as much as all GPUs at *prices*."""
    corner, cost = cost_hull(classes.rate, classes.scale[:, None] * prices)
    corner, cost = corner[classes.of], cost[classes.of]
    slope = np.diff(cost, axis=1) / np.maximum(np.diff(corner, axis=1), 1e-300)
    here = np.arange(len(classes.of))
    budget = float(prices @ classes.capacity)
    for _ in range(_MAX_RATIOS):
        need = np.minimum(remaining.required_rate(ratio), corner[:, -1])  # rounding must not exceed the fastest type
        piece = np.minimum((need[:, None] > corner[:, 1:]).sum(axis=1), slope.shape[1] - 1)
        rise = slope[here, piece]
        total_cost = float((cost[here, piece] + rise * (need - corner[here, piece])).sum())
        fall = float(rise @ remaining.rate_slope(ratio))
        if total_cost <= budget or fall >= 0:
            break
        following = ratio + (total_cost - budget) / -fall
        if following <= ratio * (1 + 1e-15):
            break
        ratio = following
    return ratio


def cost_hull(rate: Floats, cost: Floats) -> tuple[Floats, Floats]:
    """Speeds of each row, ascending from 0, and the minimal cost of each by mixing types and idle time.

    The minimal cost is linear between these speeds: the lower convex hull of the points (speed, cost) and (0, 0).
    """
    rows, types = rate.shape
    order = np.argsort(rate, axis=1, kind="stable")
    zero = np.zeros((rows, 1))
    speed = np.concatenate([zero, np.take_along_axis(rate, order, axis=1)], axis=1)
    # Unusable types have speed 0, where idle time is cheaper.
    price_of = np.concatenate([zero, np.take_along_axis(cost, order, axis=1)], axis=1)
    least = price_of.copy()
    for low in range(types + 1):
        for high in range(low + 1, types + 1):
            span = speed[:, high] - speed[:, low]
            apart = span > 0
            cheaper = np.minimum(price_of[:, low], price_of[:, high])
            for middle in range(low, high + 1):
                part = (speed[:, middle] - speed[:, low]) / np.where(apart, span, 1.0)
                mixed = np.where(apart, price_of[:, low] * (1 - part) + price_of[:, high] * part, cheaper)
                least[:, middle] = np.minimum(least[:, middle], mixed)
    return speed, least
