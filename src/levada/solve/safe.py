"""No solver ends in an exception, and none fails silently: the worst answer is an equal share with an alarm."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

import msgspec
import numpy as np

from levada.core.types import Floats
from levada.kernels import checks
from levada.solve.problem import Problem, Solution

#: Shares may exceed what there is by this part, no more.
SLACK = 1e-7

Options = ParamSpec("Options")
Solver = Callable[Concatenate[Problem, Options], Solution]


def safe(solver: Solver[Options]) -> Solver[Options]:
    """The same solver, which answers with an equal share and an alarm where it would have failed."""

    @wraps(solver)
    def answer(problem: Problem, /, *args: Options.args, **options: Options.kwargs) -> Solution:
        problem, faults = mended(problem)
        try:
            solution = solver(problem, *args, **options)
            wrong = broken(problem, solution)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if wrong:
            solution = equal(problem, f"{solver.__name__} failed, so all share equally: {wrong}")
        if faults:
            alarm = f"{faults}; {solution.alarm}" if solution.alarm else faults
            solution = msgspec.structs.replace(solution, alarm=alarm)
        return solution

    return answer


def mended(problem: Problem) -> tuple[Problem, str]:
    """The problem with numbers that cannot be taken out of it, and what they were."""
    if checks.sane(problem.rate, problem.weight, problem.scale, problem.capacity):
        return problem, ""
    faults = []
    rate, weight, scale, capacity = problem.rate, problem.weight, problem.scale, problem.capacity
    bad = ~(np.isfinite(rate) & (rate >= 0))
    if bad.any():
        faults.append(f"{int(bad.sum())} rates are no numbers from 0 upwards: taken as 0")
        rate = np.where(bad, 0.0, rate)
    bad = ~(np.isfinite(weight) & (weight > 0) & np.isfinite(scale) & (scale > 0))
    if bad.any():
        faults.append(f"{int(bad.sum())} weights or scales are not above 0: these jobs get nothing")
        rate = np.where(bad[:, None], 0.0, rate)
        weight, scale = np.where(bad, 1.0, weight), np.where(bad, 1.0, scale)
    bad = ~(np.isfinite(capacity) & (capacity >= 0))
    if bad.any():
        faults.append(f"{int(bad.sum())} capacities are no numbers from 0 upwards: taken as 0")
        capacity = np.where(bad, 0.0, capacity)
    fine = msgspec.structs.replace(problem, rate=rate, weight=weight, scale=scale, capacity=capacity)
    return fine, "; ".join(faults)


def broken(problem: Problem, solution: Solution) -> str:
    """Why this answer must not be used; empty when it may."""
    share, capacity = solution.share, problem.capacity
    scale = problem.each(problem.scale)
    if solution.pairs is None and checks.feasible(share, scale, capacity, SLACK):
        return ""
    time, use = share.sum(axis=1), scale @ share
    parts = [share]
    if solution.pairs is not None and solution.pair_share is not None and len(solution.pairs):
        together, pairs = solution.pair_share, solution.pairs
        time = time.copy()
        for side in (0, 1):
            np.add.at(time, pairs[:, side], together.sum(axis=1))
        use = use + scale[pairs[:, 0]] @ together
        parts.append(together)
    if not all(np.isfinite(part).all() for part in parts):
        return "shares are no numbers"
    if any((part < 0).any() for part in parts):
        return "shares below 0"
    if (time > 1 + SLACK).any():
        return "a job got more than all of the time"
    if (use > capacity * (1 + SLACK)).any():
        return "more GPUs given than there are"
    return ""


def equal_share(problem: Problem) -> Floats:
    """Each job's share, as if the cluster were split into as many equal parts as there are jobs."""
    jobs = max(problem.jobs, 1)
    share = problem.capacity / (jobs * problem.scale[:, None])
    share /= np.maximum(share.sum(axis=1), 1.0)[:, None]
    return problem.each(np.where(problem.rate > 0, share, 0.0))


def equal(problem: Problem, alarm: str) -> Solution:
    """An equal share that proves nothing."""
    zeros = np.zeros(len(problem.capacity))
    share = equal_share(problem)
    return Solution(share=share, level=float("nan"), bound=float("nan"), prices=zeros, how="equal", alarm=alarm)
