"""Efficient shares: every job has its floor, and no feasible shares have more total speed."""

from __future__ import annotations

from itertools import combinations
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from levada.solve.classes import classify
from levada.solve.efficient import efficient
from levada.solve.leximin import leximin
from levada.solve.problem import ShareProblem, Solution, problem
from tests.solve.methods import solve_both_ways
from tests.solve.random_problem import random_problem


@st.composite
def problems(draw: st.DrawFn) -> ShareProblem:
    jobs, types = draw(st.integers(1, 7)), draw(st.integers(1, 3))
    rate = [[draw(st.sampled_from([0.0, 0.2, 0.5, 1.0, 3.0])) for _ in range(types)] for _ in range(jobs)]
    scale = [draw(st.sampled_from([1.0, 1.0, 2.0])) for _ in range(jobs)]
    weight = [draw(st.sampled_from([1.0, 1.0, 5.0])) for _ in range(jobs)]
    capacity = [float(draw(st.integers(2, 6))) for _ in range(types)]
    return problem(rate, capacity, scale=scale, weight=weight)


def speed(instance: ShareProblem, count: np.ndarray | float, share: np.ndarray) -> float:
    """The objective of `efficient`."""
    best = instance.rate.max(axis=1)
    worth = np.divide(instance.weight * instance.scale * count, best, out=np.zeros_like(best), where=best > 0)
    return float((worth[:, None] * instance.rate * share).sum())


def by_row(instance: ShareProblem, solution: Solution) -> np.ndarray:
    """The share of each class."""
    share = np.zeros_like(instance.rate)
    share[instance.of] = solution.share
    return share


@pytest.mark.usefixtures("both_methods")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problems(), st.sampled_from([0.0, 0.5, 1.0]), st.randoms(use_true_random=False))
def test_a_slightly_favoured_job_gets_more_than_an_equal_job(
    instance: ShareProblem, floor: float, random: Random
) -> None:
    bonus = 1e-3
    favour = np.array([1.0 + bonus * random.choice([0.0, 0.5, 1.0]) for _ in range(len(instance.rate))])
    for variant in (instance, classify(instance)):
        plain, solution, fair = efficient(variant, floor), efficient(variant, floor, favour), leximin(instance)
        assert not solution.alarm
        reached, owed = ((instance.rate * result.share).sum(axis=1) for result in (solution, fair))
        assert (reached >= floor * owed - 1e-6).all()
        assert (instance.scale @ solution.share <= instance.capacity + 1e-6).all()
        assert speed(instance, 1.0, solution.share) >= (1 - bonus) * speed(instance, 1.0, plain.share) - 1e-6
        assert speed(instance, favour, solution.share) >= speed(instance, favour, plain.share) - 1e-6
        best = instance.rate.max(axis=1)
        for a, b in combinations(range(len(best)), 2):
            alike = (instance.rate[a] == instance.rate[b]).all() and instance.scale[a] == instance.scale[b]
            if alike and instance.weight[a] == instance.weight[b] and favour[a] > favour[b]:
                assert reached[a] >= reached[b] - 1e-6


@pytest.mark.usefixtures("both_methods")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problems(), st.sampled_from([0.0, 0.5, 1.0]))
def test_every_job_has_its_floor_and_the_speed_is_optimal(instance: ShareProblem, floor: float) -> None:
    fair, solution = leximin(instance), efficient(instance, floor)
    assert not solution.alarm
    reached, owed = ((instance.rate * result.share).sum(axis=1) for result in (solution, fair))
    assert (reached >= floor * owed - 1e-6).all()
    assert (solution.share.sum(axis=1) <= 1 + 1e-9).all()
    assert (instance.scale @ solution.share <= instance.capacity + 1e-6).all()
    # Leximin meets the floor, so it must not be faster.
    assert speed(instance, 1.0, solution.share) >= speed(instance, 1.0, fair.share) - 1e-6
    if len(instance.rate) > 1:
        # A small exchange of time between two jobs and two types must not be faster either.
        a, b = 0, len(instance.rate) - 1
        step = 1e-3
        for j in range(instance.rate.shape[1]):
            for k in range(instance.rate.shape[1]):
                other = solution.share.copy()
                other[a, j] -= step / instance.scale[a]
                other[a, k] += step / instance.scale[a]
                other[b, k] -= step / instance.scale[b]
                other[b, j] += step / instance.scale[b]
                feasible = (other >= 0).all() and (other.sum(axis=1) <= 1).all()
                meets_floor = ((instance.rate * other).sum(axis=1) >= floor * owed).all()
                if feasible and meets_floor and (instance.scale @ other <= instance.capacity + 1e-9).all():
                    assert speed(instance, 1.0, other) <= speed(instance, 1.0, solution.share) + 1e-6


def test_each_job_runs_on_the_type_where_it_loses_least() -> None:
    """Both jobs are faster on the first type; the second one loses less on the other."""
    instance = problem([[4.0, 1.0], [2.0, 1.8]], [1.0, 1.0])
    solution = efficient(instance, 0.0)
    assert solution.share == pytest.approx(np.eye(2), abs=1e-9)
    half = efficient(instance, 1.0)
    assert (
        (instance.rate * half.share).sum(axis=1) >= (instance.rate * leximin(instance).share).sum(axis=1) - 1e-6
    ).all()


@pytest.mark.parametrize("types", [1, 3, 5])
@pytest.mark.parametrize("load", [0.5, 2.0, 10.0])
def test_large_problems_are_solved_by_prices(types: int, load: float) -> None:
    instance = classify(random_problem(300, types, load, seed=types))
    solutions = solve_both_ways(lambda: efficient(instance, 0.5))
    assert [solution.method for solution in solutions] == ["price", "highs"]
    prices, highs = (speed(instance, instance.count, by_row(instance, solution)) for solution in solutions)
    assert prices == pytest.approx(highs, rel=1e-7)
    assert solutions[0].bound == pytest.approx(solutions[1].bound, rel=1e-7)
