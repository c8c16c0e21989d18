"""Voda's collector: its worked example, and each of its defects done right.

Ten epochs of which three are done: two with one worker of 100 s each, one with two workers of 60 s. A step is an epoch.
"""

import numpy as np
import pytest

from levada.perf import Estimator, remaining_s
from tests.perf.builders import intervals, ints, learned

EXAMPLE = ((0, 0, 1, 100.0, 1.0), (0, 0, 1, 100.0, 1.0), (0, 0, 2, 60.0, 1.0))
JOB = np.array(0)
V100, K80 = np.array(0), np.array(1)
close = pytest.approx


def test_worked_example():
    model = learned(*EXAMPLE)
    assert model.speedups(JOB, V100, ints(0, 1, 2)).tolist() == [0.0, 1.0, close(100 / 60)]
    assert 1 / model.rate(0, 0, 1) == close(100.0)
    assert 1 / model.rate(0, 0, 2) == close(60.0)
    assert remaining_s(model, JOB, V100, np.array(7.0)) == close(700.0)


def test_unobserved_sizes_are_extrapolated_at_most_proportionally():
    model = learned(*EXAMPLE)
    sizes = np.arange(3, 34)
    answer = model.speedups(JOB, V100, sizes)
    assert (answer >= 100 / 60).all()
    assert (answer <= sizes).all()
    # The second worker added 2/3; the extrapolation adds half of that for the third.
    assert answer[0] == close(5 / 3 + 1 / 3)
    assert (model.confidence(JOB, V100, sizes) < model.confidence(JOB, V100, np.array(2))).all()


def test_speedups_and_remaining_time_need_no_run_with_one_worker():
    model = learned((0, 0, 2, 60.0, 1.0))
    assert model.speedups(JOB, V100, ints(1, 2)).tolist() == [1.0, 2.0]
    assert remaining_s(model, JOB, V100, np.array(7.0)) == close(840.0)


def test_a_new_job_of_a_workload_uses_earlier_observations():
    model = Estimator()
    model.bind(ints(1), ints(0))
    model.observe(intervals(*EXAMPLE))
    model.unbind(ints(1))
    model.bind(ints(2), ints(0))
    assert model.known(ints(2)).all()
    assert model.speedups(np.array(2), V100, np.array(2)) == close(100 / 60)
    assert remaining_s(model, np.array(2), V100, np.array(10.0)) == close(1000.0)


def test_sizes_between_observed_ones_are_interpolated():
    model = learned((0, 0, 1, 100.0, 1.0), (0, 0, 4, 40.0, 1.0))
    assert model.speedups(JOB, V100, ints(2, 3)).tolist() == [close(1.5), close(2.0)]


def test_gpu_types_have_their_own_curves():
    model = learned(*EXAMPLE, (0, 1, 1, 400.0, 1.0), (0, 1, 2, 200.0, 1.0))
    assert model.rates(JOB, ints(0, 1), np.array(1)) == close(np.array([1 / 100, 1 / 400]))
    assert model.speedups(JOB, K80, np.array(2)) == close(2.0)
    assert model.speedups(JOB, V100, np.array(2)) == close(100 / 60)


def test_warm_up_after_a_start_or_resize_has_a_small_weight():
    model = Estimator()
    model.bind(ints(0), ints(0))
    rows = ((0, 0, 1, 300.0, 1.0), (0, 0, 1, 100.0, 1.0), (0, 0, 2, 180.0, 1.0), (0, 0, 2, 60.0, 1.0))
    model.observe(intervals(*rows, warm=[False, True, False, True]))
    assert 1 / model.rate(0, 0, 1) == close(100.0, rel=0.1)
    assert 1 / model.rate(0, 0, 2) == close(60.0, rel=0.1)


def test_the_last_ten_hours_outweigh_older_history():
    model = learned(*[(0, 0, 1, 100.0, 1.0)] * 1000, *[(0, 0, 1, 200.0, 1.0)] * 180)
    assert 1 / model.rate(0, 0, 1) == close(200.0, rel=0.05)
