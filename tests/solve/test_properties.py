"""Solvers compared with one row per job, on problems with ties, zeros and extreme weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.compat.gavel.solver.interior import max_min_interior
from levada.solve.finish_time import finish_time, makespan
from levada.solve.highs import Basis
from levada.solve.leximin import hierarchical, leximin
from levada.solve.max_min import max_min
from levada.solve.max_throughput import UNMET, total
from levada.solve.nash import nash
from levada.solve.problem import ShareProblem, WarmStart, problem
from tests.solve.golden_cases import assert_feasible
from tests.solve.problems import any_weights, problems
from tests.solve.reference_programs import best_sum, level_rows, leximin_levels, max_min_level, needed_load, reachable
from tests.solve.sparse import sparse

pytestmark = pytest.mark.usefixtures("both_methods")


@given(problems(weights=any_weights))
def test_max_min_is_the_optimum_of_the_job_level_program(instance: ShareProblem) -> None:
    solution = assert_feasible(instance, max_min(instance))
    assert solution.level == pytest.approx(max_min_level(instance), rel=1e-7)
    assert solution.bound == pytest.approx(solution.level, rel=1e-7)


@given(problems(weights=any_weights))
def test_jobs_that_cannot_run_get_nothing_and_limit_no_other(instance: ShareProblem) -> None:
    solution = assert_feasible(instance, max_min(instance))
    idle = np.setdiff1d(np.arange(instance.jobs), reachable(instance))
    assert not solution.share[idle].any()
    assert solution.level > 0 or not len(reachable(instance))


@given(problems(most_jobs=6, most_types=3))
def test_leximin_levels_equal_those_of_one_program_per_job(instance: ShareProblem) -> None:
    solution = assert_feasible(instance, leximin(instance))
    assert solution.levels is not None
    assert solution.levels == pytest.approx(leximin_levels(instance), rel=1e-6, abs=1e-9)


@given(problems(most_jobs=12, most_types=8, weights=any_weights))
def test_the_lowest_level_of_leximin_is_that_of_max_min(instance: ShareProblem) -> None:
    lowest, all_levels = assert_feasible(instance, max_min(instance)), assert_feasible(instance, leximin(instance))
    assert all_levels.level == pytest.approx(lowest.level, rel=1e-7)


@given(problems(weights=any_weights), st.data())
def test_a_warm_start_changes_no_level(instance: ShareProblem, data: st.DataObject) -> None:
    cold = assert_feasible(instance, leximin(instance))
    other = data.draw(problems(most_types=len(instance.capacity)))
    warm = max_min(other).warm if len(other.capacity) == len(instance.capacity) else cold.warm
    warm_started = assert_feasible(instance, leximin(instance, warm))
    assert warm_started.levels == pytest.approx(cold.levels, rel=1e-7)
    assert assert_feasible(instance, max_min(instance, warm)).level == pytest.approx(cold.level, rel=1e-7)


@given(problems())
def test_a_basis_of_another_problem_changes_no_level(instance: ShareProblem) -> None:
    foreign = WarmStart(basis=Basis(np.ones(3, bool), np.zeros(2, bool)), prices=np.ones((2, 9)))
    assert assert_feasible(instance, max_min(instance, foreign)).level == pytest.approx(
        max_min(instance).level, rel=1e-7
    )


columns = st.lists(st.floats(1.0, 1000.0) | st.just(0.0), min_size=7, max_size=7)


@given(problems(), columns, columns, columns)
def test_finish_time_minimizes_the_largest_ratio(
    instance: ShareProblem, steps: list[float], elapsed: list[float], ideal: list[float]
) -> None:
    jobs = instance.jobs
    steps_left, elapsed_s, ideal_s = (np.array(column[:jobs]) for column in (steps, elapsed, ideal))
    ideal_s += 1.0
    solution = assert_feasible(instance, finish_time(instance, steps_left, elapsed_s, ideal_s))
    busy = np.intersect1d(np.flatnonzero(steps_left > 0), reachable(instance))
    if not len(busy):
        assert solution.level == 0
        return
    rate = (instance.rate * solution.share).sum(axis=1)[busy]
    assert solution.level == pytest.approx(
        ((elapsed_s[busy] + steps_left[busy] / rate) / ideal_s[busy]).max(), rel=1e-9
    )
    assert solution.level == pytest.approx(solution.bound, rel=1e-7)

    def load(ratio: float) -> float:
        spare = ratio * ideal_s[busy] - elapsed_s[busy]
        if (spare <= 0).any():
            return float("inf")
        need = np.zeros(jobs)
        need[busy] = steps_left[busy] / spare
        return needed_load(instance, need)

    assert load(solution.level * (1 + 1e-6)) <= 1 + 1e-9
    assert load(solution.level * (1 - 1e-6)) > 1 - 1e-9


@given(problems(), columns)
def test_makespan_is_finish_time_without_elapsed_time(instance: ShareProblem, steps: list[float]) -> None:
    steps_left = np.array(steps[: instance.jobs])
    least = assert_feasible(instance, makespan(instance, steps_left)).level
    same = finish_time(instance, steps_left, np.zeros(instance.jobs), np.ones(instance.jobs)).level
    assert least == pytest.approx(same, rel=1e-12)


@given(problems(), st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=4, max_size=4))
def test_total_maximizes_the_sum(instance: ShareProblem, cost: list[float]) -> None:
    price = np.array(cost[: len(instance.capacity)])
    solution = assert_feasible(instance, total(instance, price))
    assert solution.level == pytest.approx(best_sum(instance, instance.rate / price), rel=1e-7, abs=1e-9)
    assert solution.bound == pytest.approx(solution.level, rel=1e-7, abs=1e-9)


@given(problems(), st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0, 3.0]), min_size=7, max_size=7))
def test_total_meets_all_minimum_rates_or_sets_an_alarm(instance: ShareProblem, needs: list[float]) -> None:
    need = np.array(needs[: instance.jobs])
    solution = total(instance, need=need)
    load = needed_load(instance, need)
    if load > 1 + 1e-7:
        assert solution.alarm == UNMET
        assert solution.level == pytest.approx(total(instance).level, rel=1e-7, abs=1e-9)
    elif load < 1 - 1e-7:
        assert_feasible(instance, solution)
        assert solution.levels is not None
        assert (solution.levels >= need * (1 - 1e-7)).all()


@given(problems(most_jobs=12))
def test_a_sparse_split_keeps_every_level(instance: ShareProblem) -> None:
    solution = assert_feasible(instance, leximin(instance))
    share = sparse(instance, solution, np.arange(instance.jobs) % len(instance.capacity))
    before, after = ((instance.rate * part).sum(axis=1) for part in (solution.share, share))
    assert after == pytest.approx(before, rel=1e-9, abs=1e-9)
    assert (share.sum(axis=1) <= 1 + 1e-9).all()
    assert instance.scale @ share == pytest.approx(instance.scale @ solution.share, rel=1e-9, abs=1e-9)


@given(problems(most_jobs=6))
def test_an_interior_point_has_the_optimal_level(instance: ShareProblem) -> None:
    inside = assert_feasible(instance, max_min_interior(instance))
    assert inside.level == pytest.approx(max_min(instance).level, rel=1e-6)
    # At an interior point every job that can run has at least the optimal level.
    assert inside.levels is not None
    assert (inside.levels[reachable(instance)] >= inside.level * (1 - 1e-9)).all()


@given(problems(most_jobs=6))
def test_nash_shares_maximize_the_product_of_levels(instance: ShareProblem) -> None:
    """At the best product, no allocation has a larger sum of levels relative to the current ones."""
    solution = assert_feasible(instance, nash(instance))
    jobs = reachable(instance)
    assert solution.levels is not None
    if len(jobs):
        c = level_rows(instance)
        relative = np.zeros_like(c)
        relative[jobs] = c[jobs] / solution.levels[jobs][:, None]
        assert best_sum(instance, relative) <= len(jobs) * (1 + 1e-5)


@given(problems(most_jobs=8, weights=any_weights))
def test_hierarchy_without_entities_equals_leximin(instance: ShareProblem) -> None:
    solution = assert_feasible(instance, hierarchical(instance, np.zeros(1)))
    flat = leximin(instance)
    c = level_rows(instance)
    assert solution.levels is not None
    levels = np.zeros(instance.jobs)
    jobs = reachable(instance)
    levels[jobs] = (c * solution.share).sum(axis=1)[jobs]
    assert levels == pytest.approx(flat.levels, rel=1e-6, abs=1e-9)


@given(problems(most_jobs=8), st.lists(st.integers(1, 2), min_size=8, max_size=8))
def test_every_runnable_job_of_an_entity_has_a_positive_level(instance: ShareProblem, owner: list[int]) -> None:
    """An entity can split its part of the cluster among its jobs, so each of them gets some."""
    entity = np.array(owner[: instance.jobs], int)
    whole = ShareProblem(
        rate=instance.rate,
        scale=instance.scale,
        weight=instance.weight,
        entity=entity,
        capacity=instance.capacity,
    )
    solution = assert_feasible(whole, hierarchical(whole, np.array([0.0, 1.0, 3.0])))
    assert solution.levels is not None
    assert (solution.levels[reachable(instance)] > 0).all()


def test_a_long_wait_loses_no_precision() -> None:
    """The remaining time is a small difference of large numbers, which is sensitive to rounding."""
    instance = problem([[0.0, 0.0, 2.0, 2.0]], [0, 0, 1, 1])
    solution = assert_feasible(instance, finish_time(instance, np.array([1.0]), np.array([820.0]), np.array([327.5])))
    assert solution.level == pytest.approx(820.5 / 327.5, rel=1e-12)
