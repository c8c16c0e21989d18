"""How far jobs are: laws of the columns that the simulator keeps."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.sim.pace import Pace

ONE = np.array([0])


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def test_a_job_is_done_when_its_steps_are() -> None:
    pace = Pace()
    pace.add(np.array([0, 1, 2]), array(100.0, 50.0, math.nan))
    pace.go(np.array([0, 1, 2]), 0.0, array(2.0, 1.0, 5.0), array(10.0, 10.0, 0.0))
    assert pace.steps(np.array([0, 1]), 5.0).tolist() == [0.0, 0.0], "it begins at 10"
    assert pace.next_end() == 60.0
    assert pace.ended(59.9).tolist() == []
    assert pace.ended(60.0).tolist() == [0, 1]
    assert pace.ended(1e9).tolist() == [], "each once; the third has no end"
    assert pace.next_end() == math.inf


def test_what_was_foretold_before_a_pause_does_not_count() -> None:
    pace = Pace()
    pace.add(ONE, array(100.0))
    pace.go(ONE, 0.0, array(1.0), array(0.0))
    pace.pause(ONE, 40.0)
    assert pace.next_end() == math.inf
    pace.go(ONE, 40.0, array(6.0), array(50.0))
    assert pace.next_end() == 60.0


def test_room_grows_with_the_numbers() -> None:
    pace = Pace()
    pace.add(np.array([5000]), array(10.0))
    pace.go(np.array([5000]), 0.0, array(1.0), array(0.0))
    assert pace.ended(10.0).tolist() == [5000]


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.01, 10), st.floats(0, 50)), min_size=1, max_size=20))
def test_steps_are_the_sum_over_all_stretches(stretches: list[tuple[float, float, float]]) -> None:
    pace = Pace()
    total = sum(lasts * rate for lasts, rate, _ in stretches)
    pace.add(ONE, array(2 * total))
    now = 0.0
    for lasts, rate, pause in stretches:
        pace.go(ONE, now, array(rate), array(now))
        now += lasts
        pace.pause(ONE, now)
        now += pause
    assert float(pace.steps(ONE, now)[0]) == pytest.approx(total)
    pace.go(ONE, now, array(1.0), array(now))
    assert pace.next_end() == pytest.approx(now + total)
