"""The transportation problem has the optimum of AlloX's matrix with a column per GPU and position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from levada.solve.allox import assign

pytestmark = pytest.mark.usefixtures("both_methods")
times = st.sampled_from([1.0, 1.0, 2.0, 3.0, np.inf]) | st.floats(0.1, 50.0)


@given(
    st.integers(1, 3).flatmap(
        lambda types: st.tuples(
            st.lists(st.lists(times, min_size=types, max_size=types), min_size=1, max_size=9),
            st.lists(st.integers(0, 3), min_size=types, max_size=types),
        )
    )
)
def test_assign_minimizes_the_sum_of_completion_times(instance: tuple[list[list[float]], list[int]]) -> None:
    time, capacity = np.array(instance[0]), np.array(instance[1])
    queues = assign(time, capacity)
    runs = (np.isfinite(time) & (capacity > 0)).any(axis=1)
    assert (runs == (queues.gpu_type >= 0)).all()
    jobs = int(runs.sum())
    gpus = np.repeat(np.arange(len(capacity)), capacity)
    matrix = np.concatenate([(place + 1) * time[runs][:, gpus] for place in range(jobs)] or [np.zeros((0, 0))], axis=1)
    matrix = np.where(np.isfinite(matrix), matrix, 1e7)
    rows, columns = linear_sum_assignment(matrix)
    assert queues.cost == pytest.approx(matrix[rows, columns].sum(), rel=1e-9, abs=1e-12)
    # Every position of every GPU has at most one job, and completion times add up to the cost.
    places = list(zip(queues.gpu_type[runs], queues.gpu[runs], queues.position[runs], strict=True))
    assert len(set(places)) == jobs
    assert (queues.gpu[runs] < capacity[queues.gpu_type[runs]]).all()
    completion = time[np.flatnonzero(runs), queues.gpu_type[runs]] * queues.position[runs]
    assert completion.sum() == pytest.approx(queues.cost, rel=1e-12)


def test_first_returns_one_job_per_gpu() -> None:
    queues = assign(np.array([[3.0], [1.0], [2.0]]), np.array([2]))
    assert sorted(queues.position.tolist()) == [1, 1, 2]
    first = queues.first()
    assert len(first) == 2
    assert np.argmin([3.0, 1.0, 2.0]) in first
