"""Classes against one row per job, on problems with ties, zeros and extreme weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.solve.finish_time import finish_time, makespan
from levada.solve.highs import Basis
from levada.solve.interior import max_min_interior
from levada.solve.leximin import hierarchical, leximin
from levada.solve.max_min import max_min
from levada.solve.nash import nash
from levada.solve.problem import Problem, Warm, problem
from levada.solve.total import UNMET, total
from tests.solve.cases import check
from tests.solve.joblevel import best_sum, level_rows, leximin_levels, max_min_level, needed_load, reachable
from tests.solve.problems import any_weights, problems
from tests.solve.sparse import sparse

pytestmark = pytest.mark.usefixtures("both_methods")


@given(problems(weights=any_weights))
def test_max_min_is_the_optimum_of_the_job_level_program(asked: Problem) -> None:
    found = check(asked, max_min(asked))
    assert found.level == pytest.approx(max_min_level(asked), rel=1e-7)
    assert found.bound == pytest.approx(found.level, rel=1e-7)


@given(problems(weights=any_weights))
def test_jobs_that_can_run_nowhere_get_nothing_and_hold_nobody_back(asked: Problem) -> None:
    found = check(asked, max_min(asked))
    idle = np.setdiff1d(np.arange(asked.jobs), reachable(asked))
    assert not found.share[idle].any()
    assert found.level > 0 or not len(reachable(asked))


@given(problems(most_jobs=6, most_types=3))
def test_leximin_has_the_levels_that_one_program_per_job_finds(asked: Problem) -> None:
    found = check(asked, leximin(asked))
    assert found.levels is not None
    assert found.levels == pytest.approx(leximin_levels(asked), rel=1e-6, abs=1e-9)


@given(problems(most_jobs=12, most_types=8, weights=any_weights))
def test_leximin_starts_where_max_min_ends(asked: Problem) -> None:
    lowest, all_levels = check(asked, max_min(asked)), check(asked, leximin(asked))
    assert all_levels.level == pytest.approx(lowest.level, rel=1e-7)


@given(problems(weights=any_weights), st.data())
def test_a_warm_start_changes_no_level(asked: Problem, data: st.DataObject) -> None:
    cold = check(asked, leximin(asked))
    other = data.draw(problems(most_types=len(asked.capacity)))
    warm = max_min(other).warm if len(other.capacity) == len(asked.capacity) else cold.warm
    again = check(asked, leximin(asked, warm))
    assert again.levels == pytest.approx(cold.levels, rel=1e-7)
    assert check(asked, max_min(asked, warm)).level == pytest.approx(cold.level, rel=1e-7)


@given(problems())
def test_a_basis_of_something_else_does_no_harm(asked: Problem) -> None:
    nonsense = Warm(basis=Basis(np.ones(3, bool), np.zeros(2, bool)), prices=np.ones((2, 9)))
    assert check(asked, max_min(asked, nonsense)).level == pytest.approx(max_min(asked).level, rel=1e-7)


columns = st.lists(st.floats(1.0, 1000.0) | st.just(0.0), min_size=7, max_size=7)


@given(problems(), columns, columns, columns)
def test_finish_time_is_the_least_ratio(
    asked: Problem, steps: list[float], elapsed: list[float], ideal: list[float]
) -> None:
    jobs = asked.jobs
    left, gone, ratio_of = (np.array(column[:jobs]) for column in (steps, elapsed, ideal))
    ratio_of += 1.0
    found = check(asked, finish_time(asked, left, gone, ratio_of))
    busy = np.intersect1d(np.flatnonzero(left > 0), reachable(asked))
    if not len(busy):
        assert found.level == 0
        return
    rate = (asked.rate * found.share).sum(axis=1)[busy]
    assert found.level == pytest.approx(((gone[busy] + left[busy] / rate) / ratio_of[busy]).max(), rel=1e-9)
    assert found.level == pytest.approx(found.bound, rel=1e-7)

    def load(ratio: float) -> float:
        spare = ratio * ratio_of[busy] - gone[busy]
        if (spare <= 0).any():
            return float("inf")
        need = np.zeros(jobs)
        need[busy] = left[busy] / spare
        return needed_load(asked, need)

    assert load(found.level * (1 + 1e-6)) <= 1 + 1e-9
    assert load(found.level * (1 - 1e-6)) > 1 - 1e-9


@given(problems(), columns)
def test_makespan_is_finish_time_from_now(asked: Problem, steps: list[float]) -> None:
    left = np.array(steps[: asked.jobs])
    least = check(asked, makespan(asked, left)).level
    same = finish_time(asked, left, np.zeros(asked.jobs), np.ones(asked.jobs)).level
    assert least == pytest.approx(same, rel=1e-12)


@given(problems(), st.lists(st.sampled_from([0.5, 1.0, 4.0]), min_size=4, max_size=4))
def test_total_is_the_largest_sum(asked: Problem, cost: list[float]) -> None:
    price = np.array(cost[: len(asked.capacity)])
    found = check(asked, total(asked, price))
    assert found.level == pytest.approx(best_sum(asked, asked.rate / price), rel=1e-7, abs=1e-9)
    assert found.bound == pytest.approx(found.level, rel=1e-7, abs=1e-9)


@given(problems(), st.lists(st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0, 3.0]), min_size=7, max_size=7))
def test_total_meets_all_needs_or_says_that_it_cannot(asked: Problem, needs: list[float]) -> None:
    need = np.array(needs[: asked.jobs])
    found = total(asked, need=need)
    load = needed_load(asked, need)
    if load > 1 + 1e-7:
        assert found.alarm == UNMET
        assert found.level == pytest.approx(total(asked).level, rel=1e-7, abs=1e-9)
    elif load < 1 - 1e-7:
        check(asked, found)
        assert found.levels is not None
        assert (found.levels >= need * (1 - 1e-7)).all()


@given(problems(most_jobs=12))
def test_a_sparse_split_keeps_every_level(asked: Problem) -> None:
    found = check(asked, leximin(asked))
    share = sparse(asked, found, np.arange(asked.jobs) % len(asked.capacity))
    before, after = ((asked.rate * part).sum(axis=1) for part in (found.share, share))
    assert after == pytest.approx(before, rel=1e-9, abs=1e-9)
    assert (share.sum(axis=1) <= 1 + 1e-9).all()
    assert asked.scale @ share == pytest.approx(asked.scale @ found.share, rel=1e-9, abs=1e-9)


@given(problems(most_jobs=6))
def test_an_interior_point_is_as_good_as_a_corner(asked: Problem) -> None:
    inside = check(asked, max_min_interior(asked))
    assert inside.level == pytest.approx(max_min(asked).level, rel=1e-6)
    # In the middle nobody stands at a wall that is not needed: the sum of logarithms of levels is no lower.
    assert inside.levels is not None
    assert (inside.levels[reachable(asked)] >= inside.level * (1 - 1e-9)).all()


@given(problems(most_jobs=6))
def test_nobody_can_be_moved_to_raise_the_geometric_mean(asked: Problem) -> None:
    """At the best product, no allocation has a larger sum of levels each over what it is now."""
    found = check(asked, nash(asked))
    jobs = reachable(asked)
    assert found.levels is not None
    if len(jobs):
        c = level_rows(asked)
        relative = np.zeros_like(c)
        relative[jobs] = c[jobs] / found.levels[jobs][:, None]
        assert best_sum(asked, relative) <= len(jobs) * (1 + 1e-5)


@given(problems(most_jobs=8, weights=any_weights))
def test_hierarchy_without_entities_is_leximin(asked: Problem) -> None:
    found = check(asked, hierarchical(asked, np.zeros(1)))
    flat = leximin(asked)
    c = level_rows(asked)
    assert found.levels is not None
    mine = np.zeros(asked.jobs)
    jobs = reachable(asked)
    mine[jobs] = (c * found.share).sum(axis=1)[jobs]
    assert mine == pytest.approx(flat.levels, rel=1e-6, abs=1e-9)


@given(problems(most_jobs=8), st.lists(st.integers(1, 2), min_size=8, max_size=8))
def test_no_entity_is_worse_off_than_with_its_part_of_every_type(asked: Problem, owner: list[int]) -> None:
    """An entity could split its weight's part of the cluster among its jobs in proportion, so it gets no less."""
    entity = np.array(owner[: asked.jobs], int)
    whole = Problem(rate=asked.rate, scale=asked.scale, weight=asked.weight, entity=entity, capacity=asked.capacity)
    found = check(whole, hierarchical(whole, np.array([0.0, 1.0, 3.0])))
    assert found.levels is not None
    assert (found.levels[reachable(asked)] > 0).all()


def test_a_long_wait_costs_no_digits() -> None:
    """The time that is left is a small difference of large numbers, which may round to less than is needed."""
    asked = problem([[0.0, 0.0, 2.0, 2.0]], [0, 0, 1, 1])
    found = check(asked, finish_time(asked, np.array([1.0]), np.array([820.0]), np.array([327.5])))
    assert found.level == pytest.approx(820.5 / 327.5, rel=1e-12)
