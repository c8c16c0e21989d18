"""Beliefs begin with the prior, move to what is seen, and say how sure they are."""

import numpy as np
import pytest
from hypothesis import given

from levada.core.names import Names
from levada.perf import Estimator, JobSpeed, Online, ProfileModel, Profiles, RestartKind, TableModel, ThroughputModel
from tests.perf.builders import ROWS, batch, ints, learned, seen

NAN = float("nan")
ANY = np.arange(10)[:, None, None], np.arange(3)[:, None], np.arange(1, 9)


def prior():
    """Workload w on types 0 and 1; on type 1 it cannot run with four workers. Type 2 was never measured."""
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
    """Job n belongs to workload n; these intervals were seen."""
    made = Online(prior())
    made.bind(np.arange(3), np.arange(3))
    for row in rows:
        made.observe(seen(row))
    return made


def test_it_is_a_throughput_model():
    made: ThroughputModel = online()
    assert made.rate(0, 0, 2) == 18.0


def test_before_anything_is_seen_it_is_the_prior():
    made, alone = online(), prior()
    alone.bind(np.arange(3), np.arange(3))
    assert (made.rates(*ANY) == alone.rates(*ANY)).all()
    assert (made.confidence(*ANY) == alone.confidence(*ANY)).all()
    assert made.rate(0, 0, 2, spread=2, milli=500) == alone.rate(0, 0, 2, spread=2, milli=500)
    assert (made.pair_rates(ints(0), ints(1), np.array(0), np.array(1)) == 4.0).all()
    assert made.known(ints(0, 1, 2, 9)).tolist() == [True, True, False, False]


def test_it_moves_to_what_is_seen_and_all_the_way():
    rates = [online(*[(0, 0, 2, 600.0, 600.0 * 9)] * count).rate(0, 0, 2) for count in (0, 1, 2, 5, 100)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 18.0
    assert rates[-1] == pytest.approx(9.0, rel=0.02)


def test_confidence_grows_with_what_is_seen():
    size_three = np.array(0), np.array(0), np.array(3)
    found = [float(online(*[(0, 0, 3, 600.0, 600.0)] * count).confidence(*size_three)) for count in (0, 1, 5)]
    assert found[0] == 0.5
    assert found == sorted(found)
    assert found[-1] > 0.95


def test_what_the_prior_does_not_know_is_learned_at_once():
    made = online((2, 0, 1, 60.0, 60.0 * 7))
    assert made.rate(2, 0, 1) == pytest.approx(7.0)
    assert made.known(ints(2)).tolist() == [True]
    # On the type that nobody measured, the speed is carried over from where it was seen.
    assert made.rate(2, 2, 1) == pytest.approx(7.0)


def test_cannot_run_gives_way_only_to_seeing_it_run():
    elsewhere = online(*[(0, 0, 4, 600.0, 600.0 * 30)] * 20)
    assert elsewhere.rate(0, 1, 4) == 0.0
    assert elsewhere.rate(0, 1, 2) == pytest.approx(9.0, rel=0.5)
    assert online((0, 1, 4, 600.0, 600.0 * 11)).rate(0, 1, 4) == pytest.approx(11.0)


def test_spread_and_sharing_change_a_learned_rate_as_the_prior_says():
    made = online(*[(0, 0, 2, 600.0, 600.0 * 9)] * 50)
    now = made.rate(0, 0, 2)
    assert made.rate(0, 0, 2, spread=2) == pytest.approx(now / 2)
    pair = made.pair_rates(ints(0), ints(1), np.array(0), np.array(2))[0]
    assert pair.tolist() == pytest.approx([4.0 * now / 18.0, 4.0])
    assert made.pair_rates(ints(1), ints(0), np.array(0), np.array(2))[0].tolist() == pytest.approx(pair[::-1].tolist())


def test_restarts_are_the_priors_until_one_was_seen():
    made = online()
    assert made.restart_costs_s(ints(0, 1, 0), ints(0, 2, 3), ints(2, 0, 3)).tolist() == [60.0, 20.0, 0.0]
    for _ in range(200):
        made.observe_restart(0, RestartKind.START, 100.0)
    assert made.restart_cost_s(0, 0, 2) == pytest.approx(100.0, rel=0.01)
    assert made.restart_cost_s(0, 2, 4) == 60.0


@given(ROWS)
def test_it_stays_between_the_prior_and_what_was_seen(rows):
    made, alone = Online(prior()), learned()
    made.bind(np.arange(10), np.arange(10))
    made.observe(batch(rows))
    alone.observe(batch(rows))
    told, own, answer = made.prior.rates(*ANY), alone.rates(*ANY), made.rates(*ANY)
    low, high = np.minimum(told, own), np.maximum(told, own)
    assert (answer >= low * (1 - 1e-9)).all()
    assert (answer <= high * (1 + 1e-9)).all()
    confidence = made.confidence(*ANY)
    assert ((confidence >= 0) & (confidence <= 1)).all()


@given(ROWS, ROWS)
def test_a_copy_learns_on_its_own(first, second):
    made = online()
    made.observe(batch(first))
    before = made.rates(*ANY)
    twin = made.copy()
    twin.observe(batch(second))
    twin.unbind(np.arange(3))
    assert (made.rates(*ANY) == before).all()
    assert made.known(ints(0)).all()


def test_priors_without_names_and_confidence_do_too():
    made = Online(TableModel([JobSpeed(job=0, throughput={0: 3.0})]))
    made.attach((), ())
    made.bind(ints(0, 1), ints(0, 1))
    assert made.rate(0, 0, 1) == 3.0
    assert made.confidence(ints(0, 1), np.array(0), np.array(1)).tolist() == [1.0, 0.0]
    made.observe(seen((1, 0, 1, 60.0, 300.0)))
    assert made.rate(1, 0, 1) == pytest.approx(5.0)
    made.unbind(ints(1))
    assert not made.copy().known(ints(1))[0]


def test_an_estimator_by_itself_expects_what_its_tuning_says():
    assert Estimator().restart_costs_s(ints(0, 0), ints(0, 2), ints(1, 0)).tolist() == [30.0, 10.0]
