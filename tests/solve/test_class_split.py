"""The time of a class is split among its jobs whenever that is possible, with few types per job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.solve.class_split import split_classes
from levada.solve.leximin import leximin
from tests.solve.random_problem import random_problem
from tests.solve.sparse import sparse

speeds = st.lists(st.sampled_from([1.0, 2.0, 2.0, 3.0, 5.0]) | st.floats(0.1, 9.0), min_size=1, max_size=5)


@st.composite
def splittable_classes(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rates of a class, shares of its jobs, and minimum rates that these shares meet."""
    rate = np.array(draw(speeds))
    jobs = draw(st.integers(1, 9))
    parts = st.lists(st.sampled_from([0.0, 0.0, 1.0, 2.0, 5.0]), min_size=len(rate) + 1, max_size=len(rate) + 1)
    weights = np.array([draw(parts) for _ in range(jobs)]) + 1e-12
    share = (weights / weights.sum(axis=1)[:, None])[:, 1:]
    slack = np.array(draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.0]), min_size=jobs, max_size=jobs)))
    return rate, share, (share @ rate) * slack


@given(splittable_classes())
def test_feasible_minimum_rates_are_met(instance: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    rate, share, need = instance
    split = split_classes(rate[None], share.sum(axis=0)[None], np.zeros(len(need), int), need)
    assert (split @ rate >= need * (1 - 1e-9) - 1e-8).all()
    assert (split.sum(axis=1) <= 1 + 1e-9).all()
    assert split.sum(axis=0) == pytest.approx(share.sum(axis=0), abs=1e-8)


def test_a_sparse_split_has_few_types_per_job() -> None:
    """Equal shares use all types of the class for every job; the sparse split nearly always one or two."""
    problem = random_problem(2000, 3, 3.0, seed=4)
    solution = leximin(problem)
    share = sparse(problem, solution)
    assert (share > 1e-9).sum(axis=1).mean() < (solution.share > 1e-9).sum(axis=1).mean()
    assert ((share > 1e-9).sum(axis=1) <= 2).mean() > 0.95


def test_a_job_whose_last_type_suffices_stays_on_it() -> None:
    rate = np.array([[1.0, 2.0, 4.0]])
    mass = np.array([[1.0, 1.0, 1.0]])
    need = np.array([2.0, 2.0, 2.0])
    share = split_classes(rate, mass, np.zeros(3, int), need, last=np.array([0, 2, 1]))
    assert share[2].tolist() == [0.0, 1.0, 0.0]
    assert ((share @ rate[0]) >= need - 1e-12).all()
