"""Prices and HiGHS find the same levels, and prices do find them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.solve.finish_time import finish_time, makespan
from levada.solve.instance import instance
from levada.solve.leximin import leximin
from levada.solve.max_min import max_min
from levada.solve.problem import Problem, Solution
from tests import kernel_modes
from tests.solve.cases import check
from tests.solve.methods import by_both
from tests.solve.problems import any_weights, problems

pytest.importorskip("numba")


def both(asked: Problem, solver: Callable[[], Solution]) -> tuple[Solution, Solution]:
    """What prices find (or HiGHS in their place), and what HiGHS finds."""
    price, highs = by_both(lambda: check(asked, solver()))
    assert highs.how != "price"
    return price, highs


@given(problems(most_jobs=15, most_types=8, weights=any_weights))
def test_compiled_and_interpreted_prices_are_the_same(asked: Problem) -> None:
    before, found = kernel_modes.active(), []
    for mode in kernel_modes.MODES:
        kernel_modes.use(mode)
        found.append([max_min(asked).share, leximin(asked).share])
    kernel_modes.use(before)
    for interpreted, compiled in zip(*found, strict=True):
        assert interpreted.tobytes() == compiled.tobytes()


@given(problems(most_jobs=15, most_types=8, weights=any_weights))
def test_the_same_levels(asked: Problem) -> None:
    price, highs = both(asked, lambda: max_min(asked))
    assert price.level == pytest.approx(highs.level, rel=1e-7)
    price, highs = both(asked, lambda: leximin(asked))
    assert price.levels == pytest.approx(highs.levels, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("types", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("load", [0.5, 2.0, 10.0])
def test_large_problems_are_solved_by_prices(types: int, load: float) -> None:
    asked = instance(300, types, load, seed=types)
    for solver in (max_min, leximin):
        price, highs = both(asked, lambda solver=solver: solver(asked))  # type: ignore[misc]
        assert price.how == "price"
        assert price.levels is not None
        assert price.level == pytest.approx(highs.level, rel=1e-7)
        if solver is leximin:
            assert price.levels == pytest.approx(highs.levels, rel=1e-6)
        again = solver(asked, price.warm)
        assert again.level == pytest.approx(price.level, rel=1e-7)
    steps = np.exp(np.random.default_rng(1).normal(8.0, 1.0, 300))
    price, highs = both(asked, lambda: makespan(asked, steps))
    assert price.how == "price"
    assert price.level == pytest.approx(highs.level, rel=1e-7)
    price, highs = both(asked, lambda: finish_time(asked, steps, steps / 50, steps / 3))
    assert price.how == "price"
    assert price.level == pytest.approx(highs.level, rel=1e-7)


@given(st.integers(0, 40), st.integers(1, 8), st.sampled_from([0.5, 10.0]), st.integers(0, 5))
def test_made_up_instances_are_what_was_asked_for(jobs: int, types: int, load: float, seed: int) -> None:
    asked, same = (instance(jobs, types, load, seed) for _ in range(2))
    assert np.array_equal(asked.rate, same.rate)
    assert asked.rate.shape == (jobs, types)
    assert (asked.rate > 0).all()
    most = max(asked.scale.sum() / load / types, 1.0)
    assert (np.abs(asked.capacity - most) <= 0.5).all()
