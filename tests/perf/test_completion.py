"""Completion of partly measured profiles: errors below the mean, and honest confidence."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.perf import Completed, Profiles, completed, measured
from levada.perf.completion import fingerprints
from levada.sim.catalogue import catalogue
from levada.sim.throughputs import read_gavel
from tests.peer_data import peer_data
from tests.perf.builders import ints

ALL = np.arange(26)


@pytest.fixture(scope="module")
def table():
    return read_gavel(peer_data("gavel", "simulation_throughputs.json"))


def draw_measurements(profiles, count, share, seed):
    """Random reference workloads, the profiles measured with them, and the generator."""
    rng = np.random.default_rng(seed)
    references = np.sort(rng.choice(len(profiles.workloads), count, replace=False))
    return references, measured(profiles, references, share, rng), rng


def retained_speed(profiles, at=0):
    """The fraction of its speed that each workload retains when packed with each other one, by type."""
    speed = profiles.alone[:, :, at].T[:, :, None]
    return np.where(speed == 0, 0.0, profiles.together[:, at] / np.where(speed == 0, 1.0, speed))


def errors(truth, count, share, seed):
    """Mean error of the completion and of a naive mean over unmeasured cells; then each error with its confidence."""
    references, partial, rng = draw_measurements(truth, count, share, seed)
    result = completed(partial, rng, references=references)
    hole = np.isnan(partial.together[:, 0]) & ~np.isnan(result.profiles.together[:, 0])
    error = np.abs(retained_speed(result.profiles) - retained_speed(truth))[hole]
    naive = np.nanmean(retained_speed(partial), axis=(1, 2))[:, None, None]
    return error.mean(), np.abs(naive - retained_speed(truth))[hole].mean(), error, result.together[:, 0][hole]


def test_complete_measurements_are_returned_exactly(table):
    rng = np.random.default_rng(0)
    partial = measured(table, ALL, 1.0, rng)
    np.testing.assert_array_equal(partial.together, table.together)
    result = completed(partial, rng, references=ALL)
    np.testing.assert_array_equal(result.profiles.together, table.together)
    # Rates alone are estimated only for missing types, and none is missing.
    np.testing.assert_array_equal(result.profiles.alone, table.alone)
    assert set(np.unique(result.together[:, 0])) == {1.0}


@pytest.mark.parametrize(("count", "share"), [(16, 0.2), (16, 0.5), (8, 0.5), (20, 1.0)])
def test_completed_pairs_have_smaller_errors_than_the_mean(table, count, share):
    mean_errors = [errors(table, count, share, seed)[:2] for seed in range(5)]
    ours, naive = np.mean(mean_errors, axis=0)
    assert ours < 0.88 * naive


def test_fingerprints_use_the_columns_of_the_references(table):
    """Fingerprints from wrong columns are no better than the mean: an error of 0.18 here."""
    assert np.mean([errors(table, 16, 0.2, seed)[0] for seed in range(5)]) < 0.145


@given(st.integers(0, 100), st.integers(2, 25))
def test_only_pairs_with_a_reference_are_measured(seed, count):
    truth = catalogue()
    references, partial, _ = draw_measurements(truth, count, 0.5, seed)
    known = ~np.isnan(partial.together[:, 0])
    np.testing.assert_array_equal(partial.together[:, 0][known], truth.together[:, 0][known])
    others = np.setdiff1d(ALL, references)
    assert not known[:, others][:, :, others].any()
    assert known[:, references][:, :, references].all()
    # One column per type and reference: with the stride of the references, the second type would be read from the
    # columns of the first.
    prints = fingerprints(retained_speed(truth), references)
    for gpu_type in range(3):
        part = slice(gpu_type * count, (gpu_type + 1) * count)
        np.testing.assert_array_equal(prints[:, part], retained_speed(truth)[gpu_type][:, references])


def test_higher_confidence_means_smaller_errors(table):
    confident, unconfident = [], []
    for seed in range(5):
        _, _, error, confidence = errors(table, 16, 0.5, seed)
        middle = np.median(confidence)
        confident.append(error[confidence > middle].mean())
        unconfident.append(error[confidence <= middle].mean())
    assert np.mean(confident) < 0.9 * np.mean(unconfident)


def test_unmeasured_types_have_smaller_errors_than_the_mean(table):
    ours, naive = [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        alone = table.alone.copy()
        alone[np.arange(10, 26), rng.integers(0, 3, 16)] = np.nan
        result = completed(msgspec.structs.replace(table, alone=alone), rng)
        hole = np.isnan(alone) & (table.alone > 0)
        truth = np.log(table.alone[hole])
        ours.append(np.abs(np.log(result.profiles.alone[hole]) - truth).mean())
        with np.errstate(divide="ignore"):
            mean = np.nanmean(np.log(np.where(alone > 0, alone, np.nan)), axis=0)
        naive.append(np.abs(np.broadcast_to(mean, alone.shape)[hole] - truth).mean())
        confidence = result.alone[hole]
        assert ((confidence > 0) & (confidence <= 0.5)).all()
    assert np.mean(ours) < 0.45 * np.mean(naive)


def test_sizes_are_completed_only_for_distributed_workloads(table):
    alone = table.alone.copy()
    lm, a3c = table.position("LM (batch size 5)"), table.position("A3C")
    alone[lm, :, 1:] = np.nan
    hidden = msgspec.structs.replace(table, alone=alone, spread=None, together=None)
    rng = np.random.default_rng(0)
    assert np.isnan(completed(hidden, rng).profiles.alone[[lm, a3c], :, 1:]).all()
    distributed = table.distributed()
    filled = completed(hidden, rng, distributed=distributed).profiles.alone
    assert np.abs(np.log(filled[lm, :, 1:] / table.alone[lm, :, 1:])).mean() < 0.7
    assert np.isnan(filled[a3c, :, 1:]).all()


def test_pairs_of_several_workers_are_completed():
    truth = catalogue()
    several = truth.distributed()
    both = Profiles(
        workloads=tuple(np.array(truth.workloads)[several]),
        types=truth.types,
        sizes=(1, 2),
        alone=truth.alone[several][:, :, :2],
        together=np.stack([retained_speed(truth)[:, several][:, :, several]] * 2, axis=1)
        * truth.alone[several][:, :, :2].transpose(1, 2, 0)[..., None],
    )
    references, partial, rng = draw_measurements(both, 12, 0.5, 3)
    result = completed(partial, rng, references=references)
    for at in range(2):
        hole = np.isnan(partial.together[:, at])
        mean = np.nanmean(retained_speed(partial, at), axis=(1, 2))[:, None, None]
        ours = np.abs(retained_speed(result.profiles, at) - retained_speed(both, at))[hole].mean()
        assert ours < 0.8 * np.abs(mean - retained_speed(both, at))[hole].mean()


def test_references_are_inferred_if_none_are_named():
    _, partial, _ = draw_measurements(catalogue(), 16, 0.3, 1)
    result = completed(partial, np.random.default_rng(5))
    assert not np.isnan(result.profiles.together[:, 0]).any()


def build_model(profiles, **fields):
    completed_model = Completed(profiles, np.random.default_rng(7), profiles.workloads, profiles.types, **fields)
    completed_model.bind(ALL, ALL)
    return completed_model


def test_a_workload_without_measured_pairs_stays_unknown():
    partial = catalogue().together.copy()
    partial[:, :, 3] = partial[:, :, :, 3] = np.nan
    model = build_model(msgspec.structs.replace(catalogue(), together=partial))
    assert model.pair_rates(np.array(3), ALL, np.array(2), np.array(1)).max() == 0.0
    assert model.pair_confidence(np.array(3), ALL, np.array(2), np.array(1)).max() == 0.0
    assert model.pair_rates(np.array(4), np.array(5), np.array(2), np.array(1)).min() > 0.0


def test_the_same_seed_gives_the_same_completion():
    partial = draw_measurements(catalogue(), 10, 0.3, 2)[1]
    one, two = (build_model(partial).pair_rates(ALL[:, None], ALL, np.array(1), np.array(1)) for _ in range(2))
    assert one.tobytes() == two.tobytes()
    assert (one == one.transpose(1, 0, 2)[..., ::-1]).all()


def test_confidence_is_lower_for_completed_and_interpolated_sizes():
    alone = catalogue().alone.copy()
    alone[0, 2] = np.nan
    model = build_model(msgspec.structs.replace(catalogue(), alone=alone))
    assert model.confidence(np.array(0), ints(0, 0, 0), ints(1, 3, 8)).tolist() == [1.0, 0.5, 1.0]
    on_an_unmeasured_type = model.confidence(np.array(0), np.array(2), ints(0, 1, 2, 3, 8))
    assert on_an_unmeasured_type[0] == 0.0
    assert ((on_an_unmeasured_type[1:] > 0) & (on_an_unmeasured_type[1:] <= 0.5)).all()
    assert on_an_unmeasured_type[3] == on_an_unmeasured_type[2] / 2
    assert model.rate(0, 2, 1) > 0


def test_observed_pairs_are_exact_and_copies_are_independent():
    model = build_model(draw_measurements(catalogue(), 10, 0.3, 2)[1])
    one, two, where = ints(3, 25, 99), ints(4, 25, 0), (np.array(2), np.array(1))
    twin = model.copy()
    before = twin.pair_rates(one, two, *where)
    model.observe_pairs(one, two, *where, np.array([[1.5, 2.5], [3.0, 3.0], [9.0, 9.0]]))
    assert model.pair_rates(one, two, *where).tolist() == [[1.5, 2.5], [3.0, 3.0], [0.0, 0.0]]
    assert model.pair_rates(ints(4), ints(3), *where).tolist() == [[2.5, 1.5]]
    assert model.pair_confidence(one, two, *where).tolist() == [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
    assert (twin.pair_rates(one, two, *where) == before).all()
