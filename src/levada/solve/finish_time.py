"""Finish-time fairness and makespan: no job ends late compared with what it could expect.

At a given ratio every job needs a rate, and the least load that meets all needs is a linear program by classes
(`requirements`). If the load is above 1, its prices prove the ratio too small, and say how much: the cost of all needs
at these prices falls, convex, with the ratio, so Newton's method finds where the cluster can pay for them. Ratios only
rise, and the first that can be had is the least.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.solve import price
from levada.solve.classes import classify
from levada.solve.highs import NoAnswer
from levada.solve.problem import Problem, Solution, Warm, fit, usable
from levada.solve.requirements import Speeds, least_load, speeds
from levada.solve.safe import safe
from levada.solve.split import shadow

#: A load this little above 1 is rounding.
_FULL = 1 + 1e-9
#: Binary digits of shares: beyond them is rounding.
_DIGITS = 44
#: More ratios than ever needed: prices are corners of a polyhedron, and none comes twice.
_MOST = 200


class Duties(msgspec.Struct, frozen=True):
    """What is left to do, per job that has something left and can run."""

    steps: Floats
    elapsed: Floats
    ideal: Floats

    def need(self, ratio: float) -> Floats:
        """The rate that each job needs to end within *ratio*."""
        return self.steps / (ratio * self.ideal - self.elapsed)

    def fall(self, ratio: float) -> Floats:
        """How fast these rates fall with the ratio, as numbers below 0."""
        return -self.steps * self.ideal / (ratio * self.ideal - self.elapsed) ** 2


@safe
def finish_time(problem: Problem, steps: Floats, elapsed: Floats, ideal: Floats, warm: Warm | None = None) -> Solution:
    """The smallest largest ratio (elapsed + steps / rate) / ideal over jobs; columns are per job, times in seconds.

    *steps* are those left, *elapsed* is the time since the job came, *ideal* the time from coming to end that the job
    could expect alone on its part of the cluster. `level` is the ratio: less is better. Jobs that can run nowhere, and
    jobs with nothing left to do, need nothing.
    """
    rows = _by_speed(problem)
    assert rows.of is not None
    rate, of, jobs = usable(rows), rows.of, rows.jobs
    best = rate.max(axis=1, initial=0.0)[of]
    part = np.flatnonzero((best > 0) & (steps > 0) & (ideal > 0))
    if not len(part):
        return _solution(rows, np.zeros((jobs, rate.shape[1])), 0.0, 0.0, np.zeros(rate.shape[1]), "none", None)
    duties = Duties(steps[part], elapsed[part], ideal[part])
    given = speeds(rate, rows.scale, np.bincount(of[part], minlength=len(rate)).astype(float), rows.capacity, of[part])
    # Alone on its fastest type, a job still takes this long.
    start = float(((duties.elapsed + duties.steps / best[part]) / duties.ideal).max())
    found = price.least_ratio(given, duties.steps, duties.elapsed, duties.ideal, start, warm)
    if found is None:
        found = _newton(given, duties, start, warm)
    mass, ratio, prices, how, kept = found
    share = np.zeros((jobs, rate.shape[1]))
    needs = np.minimum(_spread(rate, mass, of[part], np.minimum(duties.need(ratio), best[part])), best[part])
    # Equal jobs come out equal: what a split leaves in the last digits must not decide who is first.
    share[part] = _rounded(shadow(rate, mass, of[part], needs))
    share = fit(share, rows.scale[of], rows.capacity)
    reached = (rate[of[part]] * share[part]).sum(axis=1)
    level = float(((duties.elapsed + duties.steps / np.maximum(reached, 1e-300)) / duties.ideal).max())
    return _solution(rows, share, level, ratio, prices, how, kept)


def _solution(
    rows: Problem, share: Floats, level: float, bound: float, prices: Floats, how: str, warm: Warm | None
) -> Solution:
    levels = (rows.rate[rows.of] * share).sum(axis=1)
    return Solution(share=share, level=level, bound=bound, prices=prices, how=how, warm=warm, levels=levels)


@safe
def makespan(problem: Problem, steps: Floats, warm: Warm | None = None) -> Solution:
    """The least time in seconds, as `level`, after which all jobs can have done their *steps*."""
    jobs = problem.jobs
    return finish_time(problem, steps, np.zeros(jobs), np.ones(jobs), warm)


def _rounded(share: Floats) -> Floats:
    digits, place = np.frexp(share)
    rounded: Floats = np.ldexp(np.round(digits * 2.0**_DIGITS), place - _DIGITS)
    return rounded


def _spread(rate: Floats, mass: Floats, of: Ints, need: Floats) -> Floats:
    """These needs, raised or lowered to what their class has: else its last job has all that is over, or missing."""
    there, asked = (rate * mass).sum(axis=1), np.bincount(of, need, len(rate))
    return need * np.divide(there, asked, out=np.ones(len(rate)), where=asked > 0)[of]


def _by_speed(problem: Problem) -> Problem:
    """The problem by classes of equal rates and scale: neither weight nor entity matters here."""
    if problem.of is not None:
        return problem
    rows = len(problem.rate)
    return classify(msgspec.structs.replace(problem, weight=np.ones(rows), entity=np.zeros(rows, np.int64)))


def _newton(given: Speeds, duties: Duties, ratio: float, warm: Warm | None) -> price.Found:
    """The least ratio from *ratio* upwards by HiGHS: totals by class, the ratio, prices."""
    basis = warm.basis if warm else None
    # Of a job that has little left after a long time, rounding could ask for more than there is.
    best = given.rate.max(axis=1, initial=0.0)[given.of]
    for _ in range(_MOST):
        plan = least_load(given, np.minimum(duties.need(ratio), best), basis)
        if plan is None:
            raise NoAnswer("a job needs more than its fastest type gives")
        basis = plan.basis
        if plan.value <= _FULL:
            return plan.mass / max(plan.value, 1.0), ratio, plan.prices, "highs", Warm(basis=basis)
        following = affordable(given, duties, plan.prices, ratio)
        if following <= ratio * (1 + 1e-13):
            return plan.mass / plan.value, ratio, plan.prices, "highs", Warm(basis=basis)
        ratio = following
    raise NoAnswer("no least ratio found")


def affordable(given: Speeds, duties: Duties, prices: Floats, ratio: float) -> float:
    """The ratio, from *ratio* upwards, at which all needs cost at *prices* what all GPUs cost together."""
    corner, cost = cheapest(given.rate, given.scale[:, None] * prices)
    corner, cost = corner[given.of], cost[given.of]
    slope = np.diff(cost, axis=1) / np.maximum(np.diff(corner, axis=1), 1e-300)
    here = np.arange(len(given.of))
    money = float(prices @ given.capacity)
    for _ in range(_MOST):
        need = np.minimum(duties.need(ratio), corner[:, -1])  # rounding must not lead beyond the fastest type
        piece = np.minimum((need[:, None] > corner[:, 1:]).sum(axis=1), slope.shape[1] - 1)
        rise = slope[here, piece]
        price_now = float((cost[here, piece] + rise * (need - corner[here, piece])).sum())
        fall = float(rise @ duties.fall(ratio))
        if price_now <= money or fall >= 0:
            break
        following = ratio + (price_now - money) / -fall
        if following <= ratio * (1 + 1e-15):
            break
        ratio = following
    return ratio


def cheapest(rate: Floats, cost: Floats) -> tuple[Floats, Floats]:
    """Speeds of each row, ascending from 0, and the least cost of reaching each by mixing types and idle time.

    Between these speeds the least cost is linear: it is the lower hull of the points (speed, cost) and (0, 0).
    """
    rows, types = rate.shape
    order = np.argsort(rate, axis=1, kind="stable")
    zero = np.zeros((rows, 1))
    speed = np.concatenate([zero, np.take_along_axis(rate, order, axis=1)], axis=1)
    # A type that cannot be used stands at speed 0, where idle time is cheaper.
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
