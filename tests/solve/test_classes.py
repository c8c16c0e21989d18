"""Equal jobs form one row, computed at once and maintained across rounds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.kernels import classes
from levada.solve.classes import Classes, classify
from levada.solve.max_min import max_min
from levada.solve.problem import ShareProblem, problem
from tests.kernel_modes import Kernels
from tests.solve.golden_cases import assert_feasible
from tests.solve.problems import problems

classes_interpreted = Kernels("classes", "interpreted")


@given(problems(most_jobs=20))
def test_the_row_of_a_class_has_the_values_of_its_jobs(instance: ShareProblem) -> None:
    rows = classify(instance)
    assert rows.of is not None
    for name in ("rate", "scale", "weight", "entity"):
        assert np.array_equal(getattr(rows, name)[rows.of], getattr(instance, name))
    keys = np.column_stack([rows.rate, rows.scale, rows.weight, rows.entity])
    assert len(np.unique(keys, axis=0)) == len(keys)
    assert classify(rows) is rows


def test_rows_are_in_the_order_of_their_first_job() -> None:
    first, of = classes.distinct_rows(np.array([[2.0, 1.0], [1.0, 1.0], [2.0, 1.0], [-0.0, 1.0], [0.0, 1.0]]))
    assert first.tolist() == [0, 1, 3]
    assert of.tolist() == [0, 1, 0, 2, 2]


def test_rows_with_equal_hashes_stay_separate() -> None:
    """64-bit hashes may collide: with a factor of 1 the hash ignores the order of two numbers."""
    keys = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    hashed = classes_interpreted.distinct_rows(keys)
    saved = classes_interpreted._SPREAD
    try:
        classes_interpreted._SPREAD = 1
        colliding = classes_interpreted.distinct_rows(keys)
    finally:
        classes_interpreted._SPREAD = saved
    assert hashed[1].tolist() == colliding[1].tolist() == [0, 1, 0]


@given(st.lists(st.tuples(st.booleans(), problems(most_jobs=5, most_types=2)), min_size=1, max_size=6))
def test_maintained_classes_equal_recomputed_ones(rounds: list[tuple[bool, ShareProblem]]) -> None:
    maintained = Classes(2)
    jobs: list[tuple[float, ...]] = []
    of = np.zeros(0, np.int64)
    numbers: dict[tuple[float, ...], int] = {}
    for remove_jobs, batch in rounds:
        if remove_jobs and len(of):
            removed = np.arange(0, len(of), 2)
            maintained.remove(of[removed])
            of = np.delete(of, removed)
            jobs = [job for at, job in enumerate(jobs) if at % 2]
        if len(batch.capacity) < 2:
            continue
        added = maintained.add(batch.rate, batch.scale, batch.weight, batch.entity)
        rows = [
            (*batch.rate[at].tolist(), batch.scale[at], batch.weight[at], float(batch.entity[at]))
            for at in range(batch.jobs)
        ]
        for row, number in zip(rows, added.tolist(), strict=True):
            assert numbers.setdefault(row, number) == number
        jobs += rows
        of = np.concatenate([of, added])
    assert maintained.count.tolist() == np.bincount(of, minlength=len(maintained)).tolist()
    whole = maintained.problem(of, np.array([2.0, 3.0]))
    solution = [(*whole.rate[at].tolist(), whole.scale[at], whole.weight[at], float(whole.entity[at])) for at in of]
    assert solution == jobs


def test_a_copy_is_independent() -> None:
    one = problem([[1.0], [2.0]], [1.0])
    maintained = Classes(1)
    of = maintained.add(one.rate, one.scale, one.weight, one.entity)
    twin = maintained.copy()
    twin.add(one.rate * 3, one.scale, one.weight, one.entity)
    twin.remove(of)
    assert maintained.count.tolist() == [1, 1]
    assert twin.count.tolist() == [0, 0, 1, 1]


def test_empty_classes_do_not_affect_the_solution() -> None:
    """A class without jobs keeps its row; its slow rate limits no other job."""
    maintained = Classes(1)
    slow = problem([[0.001]], [1.0], weight=[100.0])
    fast = problem([[5.0], [5.0]], [1.0])
    removed = maintained.add(slow.rate, slow.scale, slow.weight, slow.entity)
    of = maintained.add(fast.rate, fast.scale, fast.weight, fast.entity)
    maintained.remove(removed)
    instance = maintained.problem(of, np.array([1.0]))
    solution = assert_feasible(instance, max_min(instance))
    assert solution.level == 0.5
    assert solution.share.tolist() == [[0.5], [0.5]]
