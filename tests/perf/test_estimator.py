"""The estimator: queries, sharing between jobs and types, copies and stored state."""

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from levada.perf import (
    Estimator,
    EstimatorState,
    Observations,
    RestartKind,
    ThroughputModel,
    Tuning,
    renumbered,
)
from tests.perf.builders import JOBS, ROWS, SIZES, TYPES, all_estimates, batch, intervals, ints, learned

NAN, INF = float("nan"), float("inf")
close = pytest.approx


# Queries


def test_without_observations_rates_are_one_step_per_second_and_worker():
    model: ThroughputModel = learned()
    assert model.rates(ints(0, 1, 99)[:, None], np.array(2), ints(0, 1, 8)).tolist() == [[0, 1, 8]] * 3
    assert not model.known(ints(0, 1, 99)).any()
    assert model.rate(3, 0, 4) == 4.0


def test_rates_are_steps_over_seconds():
    model = learned((0, 0, 1, 50.0, 100.0), (0, 0, 1, 150.0, 100.0), (0, 0, 4, 10.0, 40.0))
    assert model.rate(0, 0, 1) == close(1.0, rel=0.02)
    assert model.rate(0, 0, 4) == 4.0
    assert model.rate(0, 0, 4, milli=500) == 2.0


@given(ROWS)
def test_laws_of_learned_curves(rows):
    model = learned()
    model.observe(batch(rows))
    rates = model.rates(JOBS, TYPES, SIZES)
    assert np.isfinite(rates).all()
    assert (np.diff(rates, axis=-1) >= 0).all()
    ups = model.speedups(JOBS, TYPES, SIZES)
    assert (ups[..., 0] == 0).all()
    assert (ups[..., 1] == 1).all()
    assert ups == close(rates / rates[..., 1:2])
    confidence = model.confidence(JOBS, TYPES, SIZES)
    assert ((confidence >= 0) & (confidence <= 1)).all()


@given(ROWS)
def test_beyond_the_largest_observed_size_rates_are_at_most_proportional(rows):
    model = learned()
    model.observe(batch(rows))
    state = model.state()
    for workload, gpu_type in set(zip(state.workload, state.gpu_type, strict=True)):
        largest = max(
            s
            for w, k, s in zip(state.workload, state.gpu_type, state.workers, strict=True)
            if (w, k) == (workload, gpu_type)
        )
        more = np.arange(largest, 10 * largest)
        rates = model.rates(np.array(workload), np.array(gpu_type), more)
        assert (rates <= rates[0] / largest * more * (1 + 1e-12)).all()


def test_only_observed_sizes_are_points_of_the_curve():
    model = learned((0, 0, 2, 100.0, 200.0), (0, 0, 8, 100.0, 500.0))
    model.rates(JOBS, TYPES, SIZES)  # queries of other sizes add no points
    assert model.state().workers == [2, 8]


# Jobs and workloads


def test_jobs_of_one_workload_share_observations():
    model = Estimator()
    model.bind(ints(100, 200, 300), ints(1, 1, 2))
    model.observe(intervals((1, 0, 1, 10.0, 70.0)))
    assert model.rates(ints(100, 200, 300), np.array(0), np.array(1)).tolist() == [7.0, 7.0, 1.0]
    assert model.known(ints(100, 200, 300)).tolist() == [True, True, False]


def test_a_job_can_be_unbound_and_bound_again():
    model = learned((1, 0, 1, 10.0, 70.0), (2, 0, 1, 10.0, 90.0))
    model.unbind(ints(1, 77))
    assert model.known(ints(1, 2)).tolist() == [False, True]
    assert model.rate(1, 0, 1) == 1.0
    model.bind(ints(1, 55), np.array(2))
    assert [model.rate(job, 0, 1) for job in (1, 55, 2)] == [9.0, 9.0, 9.0]
    model.bind(ints(5, 5), ints(1, 2))
    assert model.rate(5, 0, 1) == 9.0


def test_job_numbers_may_be_sparse():
    model = learned((1, 0, 1, 10.0, 70.0))
    model.bind(ints(10**15, 3, -4), np.array(1))
    assert model.known(ints(10**15, 10**15 - 1, 10**15 + 1, 3, -4, -5)).tolist() == [
        True,
        False,
        False,
        True,
        True,
        False,
    ]


# GPU types


def test_an_unobserved_type_has_a_scaled_copy_of_the_known_curve():
    model = learned(
        (0, 0, 1, 100.0, 100.0),
        (0, 1, 1, 100.0, 200.0),  # type 1 is twice as fast ...
        (1, 0, 2, 100.0, 100.0),
        (1, 1, 2, 100.0, 800.0),  # ... and eight times: four times in the mean
        (2, 0, 1, 100.0, 10.0),
        (2, 0, 4, 100.0, 25.0),
    )
    assert model.rates(np.array(2), np.array(1), ints(1, 4)) == close(np.array([0.4, 1.0]))
    assert model.speedups(np.array(2), np.array(1), ints(1, 4)).tolist() == [1.0, 2.5]


def test_type_ratios_use_a_size_observed_on_both():
    model = learned((0, 0, 1, 100.0, 100.0), (0, 0, 4, 100.0, 200.0), (0, 1, 4, 100.0, 600.0), (1, 0, 1, 100.0, 100.0))
    assert model.rate(1, 1, 1) == close(3.0)  # not 1.5, the proportional rate of one worker of type 1


@pytest.mark.parametrize("best", [0, 1])
def test_the_curve_of_the_best_observed_type_is_used_for_others(best):
    other = 1 - best
    long, short = ((0, best, 1, 1e3, 1e3), (0, best, 2, 1e3, 1.9e3)), ((0, other, 1, 9.0, 9.0), (0, other, 2, 9.0, 9.9))
    assert learned(*long, *short).speedups(np.array(0), np.array(2), ints(2))[0] == close(1.9)


def test_an_unobserved_workload_is_linear_on_every_type():
    model = learned((0, 0, 1, 10.0, 10.0), (0, 1, 1, 10.0, 50.0))
    assert model.rates(np.array(4), ints(0, 1, 2), np.array(3)).tolist() == [3.0, 3.0, 3.0]


def test_confidence_in_curves_of_other_types_is_small():
    model = learned((0, 0, 1, 1e5, 1e5), (0, 1, 1, 1e5, 1e5), (1, 0, 1, 1e5, 1e5))
    own, borrowed, guessed = model.confidence(np.array(1), ints(0, 1, 2), np.array(1))
    assert own > 0.9
    assert 0 < guessed < borrowed <= 0.25
    assert model.confidence(np.array(4), np.array(0), np.array(1)) == 0.0


# Restarts


def test_restart_costs_start_at_the_tuning_and_are_learned():
    model = learned(tuning=Tuning(start_s=40.0, resize_s=20.0, stop_s=10.0))
    assert [model.restart_cost_s(1, *change) for change in ((0, 4), (4, 8), (8, 4), (4, 0))] == [40.0, 20.0, 20.0, 10.0]
    for _ in range(100):
        model.observe_restart(1, RestartKind.RESIZE, 0.5)
    assert model.restart_cost_s(1, 4, 8) == close(0.5, abs=0.2)
    assert model.restart_cost_s(1, 0, 8) == 40.0
    assert model.restart_cost_s(2, 4, 8) == 20.0
    assert model.restart_cost_s(1, 4, 4) == 0.0
    for _ in range(100):
        model.observe_restart(1, "resize", 60.0)
    assert model.restart_cost_s(1, 4, 8) == close(60.0, rel=0.05)


def test_invalid_pauses_are_ignored_and_long_ones_clipped():
    model = learned()
    for pause in (NAN, INF, -1.0):
        model.observe_restart(1, "start", pause)
    model.observe_restart(1, "explode", 1.0)
    model.observe_restart(-1, "start", 1.0)
    assert model.ignored == 5
    assert model.restart_cost_s(1, 0, 1) == model.restart_cost_s(99, 0, 1) == 30.0
    model.observe_restart(1, "start", 1e9)
    assert model.restart_cost_s(1, 0, 1) <= 8 * 30.0


def test_unobserved_pairs_have_rate_zero():
    answer = learned((0, 0, 1, 10.0, 10.0)).pair_rates(ints(0, 1)[:, None], ints(1), ints(0, 1, 2), np.array(1))
    assert answer.shape == (2, 3, 2)
    assert not answer.any()


# Copies and states


def add_observations(model: Estimator) -> None:
    model.observe(intervals((0, 0, 1, 500.0, 5.0), (1, 1, 3, 50.0, 5.0), (2, 0, 1, NAN, 5.0)))
    model.observe_restart(0, "start", 3.0)
    model.bind(ints(3), ints(0))
    model.unbind(ints(2))


@given(ROWS, st.booleans())
def test_a_copy_is_equal_and_independent(rows, queried_before):
    model = learned()
    model.observe(batch(rows))
    if queried_before:
        model.rates(JOBS, TYPES, SIZES)
    state, before = model.state(), None
    copy = model.copy()
    before = all_estimates(copy)
    add_observations(copy)
    assert model.state() == state
    assert all_estimates(model) == before
    add_observations(model)
    assert model.state() == copy.state()
    assert all_estimates(model) == all_estimates(copy)


@given(ROWS, ROWS)
def test_a_restored_estimator_behaves_like_the_original(rows, more):
    model = learned(tuning=Tuning(half_life_s=500.0))
    model.observe(batch(rows))
    add_observations(model)
    wire = msgspec.json.encode(model.state())
    restored = Estimator.restore(msgspec.json.decode(wire, type=EstimatorState), model.tuning)
    assert all_estimates(restored) == all_estimates(model)
    for estimator in (restored, model):
        estimator.observe(batch(more))
    assert restored.state() == model.state()
    assert all_estimates(restored) == all_estimates(model)


@given(st.lists(ROWS, min_size=1, max_size=5))
def test_incremental_fits_equal_a_full_fit(batches):
    model = learned()
    for rows in batches:
        model.observe(batch(rows))
        model.rates(JOBS, TYPES, SIZES)
    assert all_estimates(model) == all_estimates(Estimator.restore(model.state()))


def test_observe_does_not_modify_its_input():
    observations = batch([(0, 0, 2, 5.0, 5.0, True), (0, 0, 1, 5.0, 9.0, False)])
    columns = {name: getattr(observations, name).copy() for name in Observations.__struct_fields__}
    learned().observe(observations)
    for name, column in columns.items():
        assert (getattr(observations, name) == column).all()


def test_the_oldest_workloads_without_jobs_are_dropped() -> None:
    model = Estimator(Tuning(most_workloads=40))
    model.bind(np.array([0]), np.array([0]))
    for workload in range(500):
        job = workload + 1
        model.bind(np.array([job]), np.array([workload]))
        one = np.array([workload])
        columns = {"workload": one, "gpu_type": one * 0 + 1, "workers": one * 0 + 2, "at": one * 60.0}
        model.observe(Observations(seconds=one * 0 + 60.0, steps=one * 0 + 600.0, warm=np.array([True]), **columns))
        model.observe_restart(workload, RestartKind.START, 5.0)
        model.unbind(np.array([job]))
        model.rates(np.array([0]), np.array([1]), np.array([2]))
    workloads = set(model.state().workload)
    assert 40 <= len(workloads) <= 50
    assert {0, 499, 470} <= workloads, "the one with a job and the latest ones stay"
    assert model.known(np.array([0])).all()
    assert len(model.state().restart_workload) <= len(workloads)
    again = Estimator.restore(model.state(), Tuning(most_workloads=40))
    assert again.state() == model.state()
    assert model.rates(np.array([0]), np.array([1]), np.array([2])).tolist() == [10.0]


def test_learned_state_can_be_renumbered():
    model = Estimator()
    model.bind(np.array([7]), np.array([1]))
    rows = [(1, 0, 1, 10.0), (1, 0, 2, 18.0), (1, 2, 1, 5.0), (3, 0, 1, 2.0)]
    for workload, gpu_type, workers, rate in rows:
        model.observe(
            Observations(
                workload=np.array([workload]), gpu_type=np.array([gpu_type]), workers=np.array([workers]),
                seconds=np.array([100.0]), steps=np.array([100.0 * rate]), at=np.array([0.0]), warm=np.array([True]),
            )
        )  # fmt: skip
    model.observe_restart(1, RestartKind.RESIZE, 0.5)
    model.observe_restart(3, RestartKind.RESIZE, 9.0)
    twin = Estimator.restore(renumbered(model.state(), {1: 8, 3: 0}, {0: 5, 2: 1}))
    for workload, gpu_type, workers, _ in rows:
        there = ({1: 8, 3: 0}[workload], {0: 5, 2: 1}[gpu_type])
        before = model.believed(np.array(workload), np.array(gpu_type), np.array(workers))
        assert twin.believed(np.array(there[0]), np.array(there[1]), np.array(workers)) == before
    assert twin.pauses(8) == model.pauses(1) != {}
    assert [point[:2] for point in twin.points(8)] == [(1, 1), (5, 1), (5, 2)]
    assert twin.state().jobs == []
    # Numbers without a new number are dropped.
    fewer = Estimator.restore(renumbered(model.state(), {3: 4}, {0: 0}))
    assert [fewer.points(4)[0].rate, fewer.points(1), fewer.pauses(1)] == [2.0, [], {}]


def test_a_few_observed_pauses_outweigh_the_prior():
    model = Estimator()
    model.bind(np.array([1]), np.array([1]))
    costs = []
    for _ in range(5):
        model.observe_restart(1, RestartKind.RESIZE, 0.02)
        costs.append(model.restart_cost_s(1, 2, 4))
    assert 0.02 < costs[0] < 1.0
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 0.1
    assert model.pauses(1) == {RestartKind.RESIZE: (costs[-1], 5)}
    assert model.restart_cost_s(1, 0, 4) == Tuning().start_s
    model.observe_restart(1, RestartKind.STOP, 0.0)
    assert 0 < model.restart_cost_s(1, 4, 0) < 1.0
