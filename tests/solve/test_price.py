"""The price method and HiGHS find the same levels, and the price method succeeds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.solve.finish_time import finish_time, makespan
from levada.solve.leximin import leximin
from levada.solve.max_min import max_min
from levada.solve.problem import ShareProblem, Solution
from tests import kernel_modes
from tests.solve.golden_cases import assert_feasible
from tests.solve.methods import solve_both_ways
from tests.solve.problems import any_weights, problems
from tests.solve.random_problem import random_problem

pytest.importorskip("numba")


def solve_and_check(problem: ShareProblem, solver: Callable[[], Solution]) -> tuple[Solution, Solution]:
    """The solutions of the price method (or its fallback to HiGHS) and of HiGHS, solve_and_check feasible."""
    price, highs = solve_both_ways(lambda: assert_feasible(problem, solver()))
    assert highs.method != "price"
    return price, highs


@given(problems(most_jobs=15, most_types=8, weights=any_weights))
def test_compiled_and_interpreted_kernels_give_the_same_shares(problem: ShareProblem) -> None:
    before, shares = kernel_modes.active(), []
    for mode in kernel_modes.MODES:
        kernel_modes.use(mode)
        shares.append([max_min(problem).share, leximin(problem).share])
    kernel_modes.use(before)
    for interpreted, compiled in zip(*shares, strict=True):
        assert interpreted.tobytes() == compiled.tobytes()


@given(problems(most_jobs=15, most_types=8, weights=any_weights))
def test_prices_and_highs_find_the_same_levels(problem: ShareProblem) -> None:
    price, highs = solve_and_check(problem, lambda: max_min(problem))
    assert price.level == pytest.approx(highs.level, rel=1e-7)
    price, highs = solve_and_check(problem, lambda: leximin(problem))
    assert price.levels == pytest.approx(highs.levels, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("types", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("load", [0.5, 2.0, 10.0])
def test_large_problems_are_solved_by_prices(types: int, load: float) -> None:
    problem = random_problem(300, types, load, seed=types)
    for solver in (max_min, leximin):
        price, highs = solve_and_check(problem, lambda solver=solver: solver(problem))  # type: ignore[misc]
        assert price.method == "price"
        assert price.levels is not None
        assert price.level == pytest.approx(highs.level, rel=1e-7)
        if solver is leximin:
            assert price.levels == pytest.approx(highs.levels, rel=1e-6)
        warm_started = solver(problem, price.warm)
        assert warm_started.level == pytest.approx(price.level, rel=1e-7)
    steps = np.exp(np.random.default_rng(1).normal(8.0, 1.0, 300))
    price, highs = solve_and_check(problem, lambda: makespan(problem, steps))
    assert price.method == "price"
    assert price.level == pytest.approx(highs.level, rel=1e-7)
    price, highs = solve_and_check(problem, lambda: finish_time(problem, steps, steps / 50, steps / 3))
    assert price.method == "price"
    assert price.level == pytest.approx(highs.level, rel=1e-7)


@given(st.integers(0, 40), st.integers(1, 8), st.sampled_from([0.5, 10.0]), st.integers(0, 5))
def test_random_problems_have_the_requested_size_and_load(jobs: int, types: int, load: float, seed: int) -> None:
    problem, same = (random_problem(jobs, types, load, seed) for _ in range(2))
    assert np.array_equal(problem.rate, same.rate)
    assert problem.rate.shape == (jobs, types)
    assert (problem.rate > 0).all()
    most = max(problem.scale.sum() / load / types, 1.0)
    assert (np.abs(problem.capacity - most) <= 0.5).all()
