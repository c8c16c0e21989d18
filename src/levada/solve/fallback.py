"""Fallback of solvers: a failed solve returns equal shares and an alarm."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

import msgspec
import numpy as np

from levada.core.types import Floats
from levada.kernels import checks
from levada.solve.problem import ShareProblem, Solution

#: Relative tolerance of time and capacity.
SLACK = 1e-7

Options = ParamSpec("Options")
Solver = Callable[Concatenate[ShareProblem, Options], Solution]


def with_fallback(solver: Solver[Options]) -> Solver[Options]:
    """Wrap a solver: on failure it returns equal shares and an alarm."""

    @wraps(solver)
    def solve(problem: ShareProblem, /, *args: Options.args, **options: Options.kwargs) -> Solution:
        problem, faults = sanitize(problem)
        try:
            solution = solver(problem, *args, **options)
            failure = find_violation(problem, solution)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if failure:
            solution = equal_solution(problem, f"{solver.__name__} failed; using equal shares: {failure}")
        if faults:
            alarm = f"{faults}; {solution.alarm}" if solution.alarm else faults
            solution = msgspec.structs.replace(solution, alarm=alarm)
        return solution

    return solve


def sanitize(problem: ShareProblem) -> tuple[ShareProblem, str]:
    """Replace invalid numbers; returns the problem and a description of what was replaced."""
    if checks.sane(problem.rate, problem.weight, problem.scale, problem.capacity):
        return problem, ""
    faults = []
    rate, weight, scale, capacity = problem.rate, problem.weight, problem.scale, problem.capacity
    bad = ~(np.isfinite(rate) & (rate >= 0))
    if bad.any():
        faults.append(f"{int(bad.sum())} rates are negative or not finite: set to 0")
        rate = np.where(bad, 0.0, rate)
    bad = ~(np.isfinite(weight) & (weight > 0) & np.isfinite(scale) & (scale > 0))
    if bad.any():
        faults.append(f"{int(bad.sum())} weights or scales are not positive: these jobs get nothing")
        rate = np.where(bad[:, None], 0.0, rate)
        weight, scale = np.where(bad, 1.0, weight), np.where(bad, 1.0, scale)
    bad = ~(np.isfinite(capacity) & (capacity >= 0))
    if bad.any():
        faults.append(f"{int(bad.sum())} capacities are negative or not finite: set to 0")
        capacity = np.where(bad, 0.0, capacity)
    sanitized = msgspec.structs.replace(problem, rate=rate, weight=weight, scale=scale, capacity=capacity)
    return sanitized, "; ".join(faults)


def find_violation(problem: ShareProblem, solution: Solution) -> str:
    """The violated constraint of a solution; empty if it is feasible."""
    share, capacity = solution.share, problem.capacity
    scale = problem.per_job(problem.scale)
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
        return "shares are not finite"
    if any((part < 0).any() for part in parts):
        return "negative shares"
    if (time > 1 + SLACK).any():
        return "the shares of a job exceed 1"
    if (use > capacity * (1 + SLACK)).any():
        return "shares exceed the capacity"
    return ""


def equal_share(problem: ShareProblem) -> Floats:
    """Shares (jobs, types) that split the cluster equally among all jobs."""
    jobs = max(problem.jobs, 1)
    share = problem.capacity / (jobs * problem.scale[:, None])
    share /= np.maximum(share.sum(axis=1), 1.0)[:, None]
    return problem.per_job(np.where(problem.rate > 0, share, 0.0))


def equal_solution(problem: ShareProblem, alarm: str) -> Solution:
    """Equal shares, without bound."""
    zeros = np.zeros(len(problem.capacity))
    share = equal_share(problem)
    return Solution(share=share, level=float("nan"), bound=float("nan"), prices=zeros, method="equal", alarm=alarm)
