"""Progress of simulated jobs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.sim.progress import JobProgress

ONE = np.array([0])


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def test_a_job_ends_when_its_steps_are_done() -> None:
    progress = JobProgress()
    progress.add(np.array([0, 1, 2]), array(100.0, 50.0, math.nan))
    progress.run(np.array([0, 1, 2]), 0.0, array(2.0, 1.0, 5.0), array(10.0, 10.0, 0.0))
    assert progress.steps(np.array([0, 1]), 5.0).tolist() == [0.0, 0.0], "progress begins at 10"
    assert progress.next_end() == 60.0
    assert progress.ended(59.9).tolist() == []
    assert progress.ended(60.0).tolist() == [0, 1]
    assert progress.ended(1e9).tolist() == [], "each job once; the third never ends"
    assert progress.next_end() == math.inf


def test_a_pause_cancels_the_expected_end() -> None:
    progress = JobProgress()
    progress.add(ONE, array(100.0))
    progress.run(ONE, 0.0, array(1.0), array(0.0))
    progress.pause(ONE, 40.0)
    assert progress.next_end() == math.inf
    progress.run(ONE, 40.0, array(6.0), array(50.0))
    assert progress.next_end() == 60.0


def test_columns_grow_with_job_numbers() -> None:
    progress = JobProgress()
    progress.add(np.array([5000]), array(10.0))
    progress.run(np.array([5000]), 0.0, array(1.0), array(0.0))
    assert progress.ended(10.0).tolist() == [5000]


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.01, 10), st.floats(0, 50)), min_size=1, max_size=20))
def test_steps_are_the_sum_over_all_intervals(intervals: list[tuple[float, float, float]]) -> None:
    progress = JobProgress()
    total = sum(seconds * rate for seconds, rate, _ in intervals)
    progress.add(ONE, array(2 * total))
    now = 0.0
    for seconds, rate, pause in intervals:
        progress.run(ONE, now, array(rate), array(now))
        now += seconds
        progress.pause(ONE, now)
        now += pause
    assert float(progress.steps(ONE, now)[0]) == pytest.approx(total)
    progress.run(ONE, now, array(1.0), array(now))
    assert progress.next_end() == pytest.approx(now + total)
