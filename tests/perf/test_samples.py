"""Weights of observations: decay, cold starts, invalid values and outliers."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from levada.perf import Estimator, Tuning
from tests.perf.builders import ROWS, all_estimates, batch, intervals, ints, learned

NAN, INF = float("nan"), float("inf")
close = pytest.approx


# Time


@settings(max_examples=20)
@given(st.floats(0.01, 100.0), st.integers(1, 8))
def test_the_estimate_follows_a_change_of_speed(change, workers):
    model = learned(*[(0, 0, workers, 600.0, 6000.0)] * 30)
    assert model.rate(0, 0, workers) == close(10.0)
    for _ in range(7 * 12):  # seven half-lives
        model.observe(intervals((0, 0, workers, 600.0, 6000.0 * change)))
    tolerance = 0.01 if 1 / 8 <= change <= 8 else 1e-9  # a change beyond the outlier limit resets the estimate
    assert model.rate(0, 0, workers) == close(10.0 * change, abs=tolerance * 10.0 * max(change, 1.0))


def test_after_one_half_life_old_and_new_samples_have_equal_weight():
    tuning = Tuning(half_life_s=1000.0)
    model = learned(*[(0, 0, 1, 10.0, 10.0)] * 10_00, *[(0, 0, 1, 10.0, 30.0)] * 100, tuning=tuning)
    assert model.rate(0, 0, 1) == close(2.0, rel=1e-3)


def test_samples_of_one_size_decay_but_stay_while_another_size_runs():
    model = learned((0, 0, 1, 3600.0, 3600.0))
    before = model.confidence(np.array(0), np.array(0), np.array(1))
    for _ in range(20):
        model.observe(intervals((0, 0, 4, 1e6, 2e6)))
    assert model.confidence(np.array(0), np.array(0), np.array(1)) < 1e-6 < before
    assert model.rate(0, 0, 1) == 1.0


def test_observations_of_other_workloads_and_types_cause_no_decay():
    model = learned((0, 0, 1, 3600.0, 3600.0))
    before = model.confidence(np.array(0), np.array(0), np.array(1))
    model.observe(intervals((1, 0, 1, 1e6, 1e6), (0, 1, 1, 1e6, 1e6)))
    assert model.confidence(np.array(0), np.array(0), np.array(1)) == before


def test_splitting_an_interval_does_not_change_the_estimate():
    whole = learned((0, 0, 1, 5000.0, 10.0), (0, 0, 1, 6000.0, 24.0))
    parts = learned(*[(0, 0, 1, 50.0, 0.1)] * 100, *[(0, 0, 1, 60.0, 0.24)] * 100)
    assert parts.rate(0, 0, 1) == close(whole.rate(0, 0, 1))
    assert parts.state().weight_s == close(whole.state().weight_s)


def test_within_a_batch_weights_follow_time_not_row_order():
    rows = [(0, 0, 1, 7200.0, 7200.0), (0, 0, 1, 7200.0, 14400.0)]
    rising, falling = Estimator(), Estimator()
    for model, at in ((rising, [1.0, 2.0]), (falling, [2.0, 1.0])):
        model.bind(ints(0), ints(0))
        model.observe(intervals(*rows, at=at))
    assert rising.rate(0, 0, 1) == close(5 / 3)
    assert falling.rate(0, 0, 1) == close(4 / 3)


@given(ROWS, st.randoms())
def test_the_order_of_rows_in_a_batch_does_not_matter(rows, random):
    at = [float(random.randrange(3)) for _ in rows]
    order = random.sample(range(len(rows)), len(rows))
    first, second = learned(), learned()
    first.observe(batch(rows, at))
    second.observe(batch([rows[i] for i in order], [at[i] for i in order]))
    assert first.state() == second.state()
    assert all_estimates(first) == all_estimates(second)


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=20))
def test_confidence_grows_with_every_observation(seconds):
    model = learned()
    last = 0.0
    for duration in seconds:
        model.observe(intervals((0, 0, 2, duration, duration)))
        now = float(model.confidence(np.array(0), np.array(0), np.array(2)))
        assert now > last or now == close(last, rel=1e-12)
        assert now > last or now > 0.98
        last = now


# Cold starts, invalid values and outliers


def test_a_cold_interval_has_a_small_weight():
    model = learned()
    model.observe(intervals((0, 0, 1, 100.0, 20.0), warm=False))
    assert model.rate(0, 0, 1) == close(0.2)  # used while nothing else is known ...
    assert model.confidence(np.array(0), np.array(0), np.array(1)) < 0.05  # ... with little confidence
    model.observe(intervals((0, 0, 1, 100.0, 100.0)))
    assert model.rate(0, 0, 1) == close(1.0, rel=0.05)


def test_cold_intervals_can_be_ignored():
    model = learned(tuning=Tuning(cold_weight=0.0))
    model.observe(intervals((0, 0, 1, 100.0, 20.0), warm=False))
    assert not model.known(ints(0)).any()
    assert (model.ignored, model.state().workers) == (0, [])
    model.observe(intervals((0, 0, 1, 100.0, 100.0)))
    model.observe(intervals((0, 0, 1, 100.0, 20.0), warm=False))
    assert model.rate(0, 0, 1) == 1.0


def test_cold_intervals_never_reset_a_warm_estimate():
    model = learned((0, 0, 1, 20.0, 20.0))
    for _ in range(10):
        model.observe(intervals((0, 0, 1, 100.0, 1.0), warm=False))
    assert model.rate(0, 0, 1) == 1.0


BAD_ROWS = [
    *((0, 0, 1, bad, 10.0) for bad in (NAN, INF, -INF, 0.0, -1.0, 1e300, 1e-300)),
    *((0, 0, 1, 10.0, bad) for bad in (NAN, INF, -INF, 0.0, -1.0, 1e300, 1e-300)),
    (0, 0, 1, 1e12, 1e12),
    *((0, 0, bad, 10.0, 10.0) for bad in (0, -1, 2**40)),
    *((bad, 0, 1, 10.0, 10.0) for bad in (-1, 2**40)),
    *((0, bad, 1, 10.0, 10.0) for bad in (-1, 2**40)),
]


@pytest.mark.parametrize("row", BAD_ROWS)
def test_invalid_rows_are_counted_and_change_nothing(row):
    model, clean = learned((0, 0, 1, 10.0, 20.0)), learned((0, 0, 1, 10.0, 20.0))
    model.observe(intervals(row))
    assert model.ignored == 1
    assert all_estimates(model) == all_estimates(clean)
    model.observe(intervals(row, (0, 0, 2, 10.0, 30.0), row))
    clean.observe(intervals((0, 0, 2, 10.0, 30.0)))
    assert model.ignored == 3
    assert all_estimates(model) == all_estimates(clean)


def test_a_row_without_a_time_and_an_empty_batch_are_ignored():
    model = learned()
    model.observe(intervals((0, 0, 1, 10.0, 20.0), at=[NAN]))
    model.observe(intervals())
    assert (model.ignored, model.outliers) == (1, 0)
    assert not model.known(ints(0)).any()


@pytest.mark.parametrize("factor", [1e-6, 0.05, 20.0, 1e6])
def test_a_single_outlier_does_not_change_the_rate(factor):
    model = learned(*[(0, 0, 2, 60.0, 60.0)] * 10)
    model.observe(intervals((0, 0, 2, 3600.0, 3600.0 * factor)))
    assert model.rate(0, 0, 2) == close(1.0)
    assert model.outliers == 1
    model.observe(intervals((0, 0, 2, 60.0, 90.0)))
    assert 1.0 < model.rate(0, 0, 2) < 1.1


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_a_single_outlier_in_the_first_batch_is_dropped(factor):
    model = learned()
    model.observe(intervals((0, 0, 2, 60.0, 60.0 * factor), *[(0, 0, 2, 60.0, 60.0)] * 4))
    assert model.rate(0, 0, 2) == close(1.0)
    assert model.outliers == 1


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_an_outlier_as_first_sample_is_replaced_by_the_next(factor):
    model = learned((0, 0, 2, 60.0, 60.0 * factor), (0, 0, 2, 60.0, 60.0))
    assert model.rate(0, 0, 2) == close(1.0)


def test_three_consecutive_outliers_reset_the_estimate():
    model = learned(*[(0, 0, 2, 60.0, 60.0)] * 10, *[(0, 0, 2, 60.0, 6000.0)] * 2)
    assert model.rate(0, 0, 2) == close(1.0)
    model.observe(intervals((0, 0, 2, 60.0, 6000.0)))
    assert model.rate(0, 0, 2) == close(100.0)


def test_outliers_that_are_not_consecutive_are_ignored():
    model = learned(*[(0, 0, 2, 60.0, 60.0)] * 2)
    for _ in range(10):
        for steps in (60.0, 6000.0, 6000.0):
            model.observe(intervals((0, 0, 2, 60.0, steps)))
            assert model.rate(0, 0, 2) == close(1.0)


def test_after_a_reset_three_outliers_are_needed_again():
    model = learned(*[(0, 0, 2, 60.0, 60.0)] * 10, *[(0, 0, 2, 600.0, 6e4)] * 3, *[(0, 0, 2, 60.0, 60.0)] * 2)
    assert model.rate(0, 0, 2) == close(100.0)
