"""Equal jobs are one row, from scratch and kept from round to round."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.kernels import classes
from levada.solve.classes import Classes, classify
from levada.solve.max_min import max_min
from levada.solve.problem import Problem, problem
from tests.kernel_modes import Kernels
from tests.solve.cases import check
from tests.solve.problems import problems

classes_interpreted = Kernels("classes", "interpreted")


@given(problems(most_jobs=20))
def test_every_job_finds_its_own_data_in_its_row(asked: Problem) -> None:
    rows = classify(asked)
    assert rows.of is not None
    for name in ("rate", "scale", "weight", "entity"):
        assert np.array_equal(getattr(rows, name)[rows.of], getattr(asked, name))
    keys = np.column_stack([rows.rate, rows.scale, rows.weight, rows.entity])
    assert len(np.unique(keys, axis=0)) == len(keys)
    assert classify(rows) is rows


def test_rows_stand_in_the_order_in_which_jobs_come() -> None:
    first, of = classes.distinct_rows(np.array([[2.0, 1.0], [1.0, 1.0], [2.0, 1.0], [-0.0, 1.0], [0.0, 1.0]]))
    assert first.tolist() == [0, 1, 3]
    assert of.tolist() == [0, 1, 0, 2, 2]


def test_two_rows_with_one_mark_stay_two() -> None:
    """Marks of 64 bits may collide: without any spreading, the order of two numbers is lost."""
    keys = np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    with_marks = classes_interpreted.distinct_rows(keys)
    saved = classes_interpreted._SPREAD
    try:
        classes_interpreted._SPREAD = 1
        without = classes_interpreted.distinct_rows(keys)
    finally:
        classes_interpreted._SPREAD = saved
    assert with_marks[1].tolist() == without[1].tolist() == [0, 1, 0]


@given(st.lists(st.tuples(st.booleans(), problems(most_jobs=5, most_types=2)), min_size=1, max_size=6))
def test_kept_classes_count_as_if_made_anew(rounds: list[tuple[bool, Problem]]) -> None:
    kept = Classes(2)
    jobs: list[tuple[float, ...]] = []
    of = np.zeros(0, np.int64)
    numbers: dict[tuple[float, ...], int] = {}
    for leave, batch in rounds:
        if leave and len(of):
            gone = np.arange(0, len(of), 2)
            kept.remove(of[gone])
            of = np.delete(of, gone)
            jobs = [job for at, job in enumerate(jobs) if at % 2]
        if len(batch.capacity) < 2:
            continue
        mine = kept.add(batch.rate, batch.scale, batch.weight, batch.entity)
        rows = [
            (*batch.rate[at].tolist(), batch.scale[at], batch.weight[at], float(batch.entity[at]))
            for at in range(batch.jobs)
        ]
        for row, number in zip(rows, mine.tolist(), strict=True):
            assert numbers.setdefault(row, number) == number
        jobs += rows
        of = np.concatenate([of, mine])
    assert kept.count.tolist() == np.bincount(of, minlength=len(kept)).tolist()
    whole = kept.problem(of, np.array([2.0, 3.0]))
    found = [(*whole.rate[at].tolist(), whole.scale[at], whole.weight[at], float(whole.entity[at])) for at in of]
    assert found == jobs


def test_a_copy_goes_its_own_way() -> None:
    one = problem([[1.0], [2.0]], [1.0])
    kept = Classes(1)
    of = kept.add(one.rate, one.scale, one.weight, one.entity)
    twin = kept.copy()
    twin.add(one.rate * 3, one.scale, one.weight, one.entity)
    twin.remove(of)
    assert kept.count.tolist() == [1, 1]
    assert twin.count.tolist() == [0, 0, 1, 1]


def test_empty_classes_have_no_say() -> None:
    """A class whose jobs are gone keeps its row, and its slow rate holds nobody back."""
    kept = Classes(1)
    slow = problem([[0.001]], [1.0], weight=[100.0])
    fast = problem([[5.0], [5.0]], [1.0])
    gone = kept.add(slow.rate, slow.scale, slow.weight, slow.entity)
    of = kept.add(fast.rate, fast.scale, fast.weight, fast.entity)
    kept.remove(gone)
    asked = kept.problem(of, np.array([1.0]))
    found = check(asked, max_min(asked))
    assert found.level == 0.5
    assert found.share.tolist() == [[0.5], [0.5]]
