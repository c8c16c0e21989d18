"""Efficient shares: nobody below its floor, and no feasible shares above it with more speed in all."""

from __future__ import annotations

from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from levada.solve.classes import classify
from levada.solve.efficient import efficient
from levada.solve.instance import instance
from levada.solve.leximin import leximin
from levada.solve.problem import Problem, Solution, problem
from tests.solve.methods import by_both


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    jobs, types = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    rate = [[draw(st.sampled_from([0.0, 0.2, 0.5, 1.0, 3.0])) for _ in range(types)] for _ in range(jobs)]
    scale = [draw(st.sampled_from([1.0, 1.0, 2.0])) for _ in range(jobs)]
    weight = [draw(st.sampled_from([1.0, 1.0, 5.0])) for _ in range(jobs)]
    capacity = [float(draw(st.integers(2, 6))) for _ in range(types)]
    return problem(rate, capacity, scale=scale, weight=weight)


def speed(asked: Problem, count: np.ndarray | float, share: np.ndarray) -> float:
    """What `efficient` makes as large as it can."""
    best = asked.rate.max(axis=1)
    worth = np.divide(asked.weight * asked.scale * count, best, out=np.zeros_like(best), where=best > 0)
    return float((worth[:, None] * asked.rate * share).sum())


def by_row(asked: Problem, found: Solution) -> np.ndarray:
    """The share of each class, from those of its jobs."""
    share = np.zeros_like(asked.rate)
    share[asked.of] = found.share
    return share


@pytest.mark.usefixtures("both_methods")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problems(), st.sampled_from([0.0, 0.5, 1.0]), st.randoms(use_true_random=False))
def test_who_is_favoured_a_little_comes_first_where_speed_is_the_same(
    asked: Problem, floor: float, dice: Random
) -> None:
    little = 1e-3
    favour = np.array([1.0 + little * dice.choice([0.0, 0.5, 1.0]) for _ in range(len(asked.rate))])
    for given_jobs in (asked, classify(asked)):
        plain, found, fair = efficient(given_jobs, floor), efficient(given_jobs, floor, favour), leximin(asked)
        assert not found.alarm
        reached, owed = ((asked.rate * solution.share).sum(axis=1) for solution in (found, fair))
        assert (reached >= floor * owed - 1e-6).all()
        assert (asked.scale @ found.share <= asked.capacity + 1e-6).all()
        assert speed(asked, 1.0, found.share) >= (1 - little) * speed(asked, 1.0, plain.share) - 1e-6
        assert speed(asked, favour, found.share) >= speed(asked, favour, plain.share) - 1e-6
        best = asked.rate.max(axis=1)
        for a, b in combinations(range(len(best)), 2):
            alike = (asked.rate[a] == asked.rate[b]).all() and asked.scale[a] == asked.scale[b]
            if alike and asked.weight[a] == asked.weight[b] and favour[a] > favour[b]:
                assert reached[a] >= reached[b] - 1e-6


@pytest.mark.usefixtures("both_methods")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problems(), st.sampled_from([0.0, 0.5, 1.0]))
def test_nobody_falls_below_the_floor_and_nothing_is_faster(asked: Problem, floor: float) -> None:
    fair, found = leximin(asked), efficient(asked, floor)
    assert not found.alarm
    reached, owed = ((asked.rate * solution.share).sum(axis=1) for solution in (found, fair))
    assert (reached >= floor * owed - 1e-6).all()
    assert (found.share.sum(axis=1) <= 1 + 1e-9).all()
    assert (asked.scale @ found.share <= asked.capacity + 1e-6).all()
    # Leximin itself, and every mixture with it, keeps the floor: none of them may be faster.
    assert speed(asked, 1.0, found.share) >= speed(asked, 1.0, fair.share) - 1e-6
    if len(asked.rate) > 1:
        # Nor is any exchange of a little time between two jobs and two types that both can spare.
        a, b = 0, len(asked.rate) - 1
        step = 1e-3
        for j in range(asked.rate.shape[1]):
            for k in range(asked.rate.shape[1]):
                other = found.share.copy()
                other[a, j] -= step / asked.scale[a]
                other[a, k] += step / asked.scale[a]
                other[b, k] -= step / asked.scale[b]
                other[b, j] += step / asked.scale[b]
                feasible = (other >= 0).all() and (other.sum(axis=1) <= 1).all()
                keeps = ((asked.rate * other).sum(axis=1) >= floor * owed).all()
                if feasible and keeps and (asked.scale @ other <= asked.capacity + 1e-9).all():
                    assert speed(asked, 1.0, other) <= speed(asked, 1.0, found.share) + 1e-6


def test_each_stands_where_it_loses_least() -> None:
    """Both are faster on the first type; the second job would lose less on the other one."""
    asked = problem([[4.0, 1.0], [2.0, 1.8]], [1.0, 1.0])
    found = efficient(asked, 0.0)
    assert found.share == pytest.approx(np.eye(2), abs=1e-9)
    half = efficient(asked, 1.0)
    assert ((asked.rate * half.share).sum(axis=1) >= (asked.rate * leximin(asked).share).sum(axis=1) - 1e-6).all()


@pytest.mark.parametrize("types", [1, 3, 5])
@pytest.mark.parametrize("load", [0.5, 2.0, 10.0])
def test_large_problems_are_solved_by_prices(types: int, load: float) -> None:
    asked = classify(instance(300, types, load, seed=types))
    found = by_both(lambda: efficient(asked, 0.5))
    assert [one.how for one in found] == ["price", "highs"]
    prices, highs = (speed(asked, asked.count, by_row(asked, one)) for one in found)
    assert prices == pytest.approx(highs, rel=1e-7)
    assert found[0].bound == pytest.approx(found[1].bound, rel=1e-7)
