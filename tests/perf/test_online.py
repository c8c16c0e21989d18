"""`Online` starts with the prior and converges to observations, with a confidence."""

import numpy as np
import pytest
from hypothesis import given

from levada.core.names import Names
from levada.perf import Estimator, JobSpeed, Online, ProfileModel, Profiles, RestartKind, TableModel, ThroughputModel
from tests.perf.builders import ROWS, batch, intervals, ints, learned

NAN = float("nan")
ANY = np.arange(10)[:, None, None], np.arange(3)[:, None], np.arange(1, 9)


def prior():
    """Workload w on types 0 and 1, on type 1 not with four workers; type 2 is not measured."""
    return ProfileModel(
        Profiles(
            workloads=("w", "x"),
            types=("t", "u"),
            sizes=(1, 2, 4),
            alone=np.array([[[10.0, 18.0, 30.0], [5.0, 9.0, 0.0]], [[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]]]),
            spread=np.array([[[10.0, 9.0, 15.0], [NAN] * 3], [[NAN] * 3, [NAN] * 3]]),
            together=np.full((2, 3, 2, 2), 4.0),
            restart_s=np.array([60.0, 20.0]),
        ),
        Names(["w", "x", "y"]),
        Names(["t", "u", "v"]),
    )


def online(*rows):
    """A model that observed these rows; job n belongs to workload n."""
    model = Online(prior())
    model.bind(np.arange(3), np.arange(3))
    for row in rows:
        model.observe(intervals(row))
    return model


def test_online_is_a_throughput_model():
    model: ThroughputModel = online()
    assert model.rate(0, 0, 2) == 18.0


def test_without_observations_the_prior_is_returned():
    model, alone = online(), prior()
    alone.bind(np.arange(3), np.arange(3))
    assert (model.rates(*ANY) == alone.rates(*ANY)).all()
    assert (model.confidence(*ANY) == alone.confidence(*ANY)).all()
    assert model.rate(0, 0, 2, spread=2, milli=500) == alone.rate(0, 0, 2, spread=2, milli=500)
    assert (model.pair_rates(ints(0), ints(1), np.array(0), np.array(1)) == 4.0).all()
    assert model.known(ints(0, 1, 2, 9)).tolist() == [True, True, False, False]


def test_rates_converge_to_the_observed_rate():
    rates = [online(*[(0, 0, 2, 600.0, 600.0 * 9)] * count).rate(0, 0, 2) for count in (0, 1, 2, 5, 100)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 18.0
    assert rates[-1] == pytest.approx(9.0, rel=0.02)


def test_confidence_grows_with_observations():
    size_three = np.array(0), np.array(0), np.array(3)
    confidences = [float(online(*[(0, 0, 3, 600.0, 600.0)] * count).confidence(*size_three)) for count in (0, 1, 5)]
    assert confidences[0] == 0.5
    assert confidences == sorted(confidences)
    assert confidences[-1] > 0.95


def test_a_workload_unknown_to_the_prior_is_learned_at_once():
    model = online((2, 0, 1, 60.0, 60.0 * 7))
    assert model.rate(2, 0, 1) == pytest.approx(7.0)
    assert model.known(ints(2)).tolist() == [True]
    # A type without measurements has the speed of the observed type.
    assert model.rate(2, 2, 1) == pytest.approx(7.0)


def test_a_rate_of_zero_is_changed_only_by_observing_that_size_and_type():
    elsewhere = online(*[(0, 0, 4, 600.0, 600.0 * 30)] * 20)
    assert elsewhere.rate(0, 1, 4) == 0.0
    assert elsewhere.rate(0, 1, 2) == pytest.approx(9.0, rel=0.5)
    assert online((0, 1, 4, 600.0, 600.0 * 11)).rate(0, 1, 4) == pytest.approx(11.0)


def test_learned_rates_keep_the_spread_and_pair_ratios_of_the_prior():
    model = online(*[(0, 0, 2, 600.0, 600.0 * 9)] * 50)
    learned_rate = model.rate(0, 0, 2)
    assert model.rate(0, 0, 2, spread=2) == pytest.approx(learned_rate / 2)
    pair = model.pair_rates(ints(0), ints(1), np.array(0), np.array(2))[0]
    assert pair.tolist() == pytest.approx([4.0 * learned_rate / 18.0, 4.0])
    assert model.pair_rates(ints(1), ints(0), np.array(0), np.array(2))[0].tolist() == pytest.approx(
        pair[::-1].tolist()
    )


def test_restart_costs_are_those_of_the_prior_until_one_is_observed():
    model = online()
    assert model.restart_costs_s(ints(0, 1, 0), ints(0, 2, 3), ints(2, 0, 3)).tolist() == [60.0, 20.0, 0.0]
    for _ in range(200):
        model.observe_restart(0, RestartKind.START, 100.0)
    assert model.restart_cost_s(0, 0, 2) == pytest.approx(100.0, rel=0.01)
    assert model.restart_cost_s(0, 2, 4) == 60.0


@given(ROWS)
def test_rates_stay_between_prior_and_observation(rows):
    model, alone = Online(prior()), learned()
    model.bind(np.arange(10), np.arange(10))
    model.observe(batch(rows))
    alone.observe(batch(rows))
    prior_rates, observed_rates, rates = model.prior.rates(*ANY), alone.rates(*ANY), model.rates(*ANY)
    low, high = np.minimum(prior_rates, observed_rates), np.maximum(prior_rates, observed_rates)
    assert (rates >= low * (1 - 1e-9)).all()
    assert (rates <= high * (1 + 1e-9)).all()
    confidence = model.confidence(*ANY)
    assert ((confidence >= 0) & (confidence <= 1)).all()


@given(ROWS, ROWS)
def test_a_copy_is_independent(first, second):
    model = online()
    model.observe(batch(first))
    before = model.rates(*ANY)
    twin = model.copy()
    twin.observe(batch(second))
    twin.unbind(np.arange(3))
    assert (model.rates(*ANY) == before).all()
    assert model.known(ints(0)).all()


def test_a_prior_may_lack_names_and_confidence():
    model = Online(TableModel([JobSpeed(job=0, throughput={0: 3.0})]))
    model.attach((), ())
    model.bind(ints(0, 1), ints(0, 1))
    assert model.rate(0, 0, 1) == 3.0
    assert model.confidence(ints(0, 1), np.array(0), np.array(1)).tolist() == [1.0, 0.0]
    model.observe(intervals((1, 0, 1, 60.0, 300.0)))
    assert model.rate(1, 0, 1) == pytest.approx(5.0)
    model.unbind(ints(1))
    assert not model.copy().known(ints(1))[0]


def test_an_estimator_without_a_prior_uses_the_restart_costs_of_its_tuning():
    assert Estimator().restart_costs_s(ints(0, 0), ints(0, 2), ints(1, 0)).tolist() == [30.0, 10.0]
