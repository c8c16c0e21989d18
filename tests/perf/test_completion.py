"""Few measurements tell much: what is completed is near the truth, and knows how near."""

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


def drawn(profiles, count, share, seed):
    """Some references, what is measured with them, and the generator for what follows."""
    rng = np.random.default_rng(seed)
    references = np.sort(rng.choice(len(profiles.workloads), count, replace=False))
    return references, measured(profiles, references, share, rng), rng


def kept(profiles, at=0):
    """The part of its speed that each workload keeps beside each other, by type."""
    speed = profiles.alone[:, :, at].T[:, :, None]
    return np.where(speed == 0, 0.0, profiles.together[:, at] / np.where(speed == 0, 1.0, speed))


def errors(truth, count, share, seed):
    """Mean error of what was not measured: of the completion, of the mean of what was; and each with its confidence."""
    references, seen, rng = drawn(truth, count, share, seed)
    answer = completed(seen, rng, references=references)
    hole = np.isnan(seen.together[:, 0]) & ~np.isnan(answer.profiles.together[:, 0])
    error = np.abs(kept(answer.profiles) - kept(truth))[hole]
    naive = np.nanmean(kept(seen), axis=(1, 2))[:, None, None]
    return error.mean(), np.abs(naive - kept(truth))[hole].mean(), error, answer.together[:, 0][hole]


def test_all_measured_is_exact(table):
    rng = np.random.default_rng(0)
    seen = measured(table, ALL, 1.0, rng)
    np.testing.assert_array_equal(seen.together, table.together)
    answer = completed(seen, rng, references=ALL)
    np.testing.assert_array_equal(answer.profiles.together, table.together)
    # Alone, only types are left to guess, and none is missing.
    np.testing.assert_array_equal(answer.profiles.alone, table.alone)
    assert set(np.unique(answer.together[:, 0])) == {1.0}


@pytest.mark.parametrize(("count", "share"), [(16, 0.2), (16, 0.5), (8, 0.5), (20, 1.0)])
def test_pairs_are_nearer_the_truth_than_the_mean(table, count, share):
    found = [errors(table, count, share, seed)[:2] for seed in range(5)]
    ours, naive = np.mean(found, axis=0)
    assert ours < 0.88 * naive


def test_with_the_right_columns_it_errs_less_than_with_the_stride_of_the_references(table):
    """Read from the wrong columns, the fingerprints tell no more than the mean does: 0.18 here."""
    assert np.mean([errors(table, 16, 0.2, seed)[0] for seed in range(5)]) < 0.145


@given(st.integers(0, 100), st.integers(2, 25))
def test_measured_cells_are_those_of_the_references_own_columns(seed, count):
    truth = catalogue()
    references, seen, _ = drawn(truth, count, 0.5, seed)
    known = ~np.isnan(seen.together[:, 0])
    np.testing.assert_array_equal(seen.together[:, 0][known], truth.together[:, 0][known])
    others = np.setdiff1d(ALL, references)
    assert not known[:, others][:, :, others].any()
    assert known[:, references][:, :, references].all()
    # One column per type and reference: with the stride of the references, the second type would be read from the
    # columns of the first.
    prints = fingerprints(kept(truth), references)
    for gpu_type in range(3):
        part = slice(gpu_type * count, (gpu_type + 1) * count)
        np.testing.assert_array_equal(prints[:, part], kept(truth)[gpu_type][:, references])


def test_more_confident_answers_are_nearer_the_truth(table):
    sure, unsure = [], []
    for seed in range(5):
        _, _, error, confidence = errors(table, 16, 0.5, seed)
        middle = np.median(confidence)
        sure.append(error[confidence > middle].mean())
        unsure.append(error[confidence <= middle].mean())
    assert np.mean(sure) < 0.9 * np.mean(unsure)


def test_types_that_a_workload_never_ran_on_are_nearer_the_truth_than_the_mean(table):
    ours, naive = [], []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        alone = table.alone.copy()
        alone[np.arange(10, 26), rng.integers(0, 3, 16)] = np.nan
        answer = completed(msgspec.structs.replace(table, alone=alone), rng)
        hole = np.isnan(alone) & (table.alone > 0)
        truth = np.log(table.alone[hole])
        ours.append(np.abs(np.log(answer.profiles.alone[hole]) - truth).mean())
        with np.errstate(divide="ignore"):
            mean = np.nanmean(np.log(np.where(alone > 0, alone, np.nan)), axis=0)
        naive.append(np.abs(np.broadcast_to(mean, alone.shape)[hole] - truth).mean())
        confidence = answer.alone[hole]
        assert ((confidence > 0) & (confidence <= 0.5)).all()
    assert np.mean(ours) < 0.45 * np.mean(naive)


def test_sizes_are_completed_only_where_several_workers_are_possible(table):
    alone = table.alone.copy()
    lm, a3c = table.position("LM (batch size 5)"), table.position("A3C")
    alone[lm, :, 1:] = np.nan
    hidden = msgspec.structs.replace(table, alone=alone, spread=None, together=None)
    rng = np.random.default_rng(0)
    assert np.isnan(completed(hidden, rng).profiles.alone[[lm, a3c], :, 1:]).all()
    may = table.distributed()
    filled = completed(hidden, rng, distributed=may).profiles.alone
    assert np.abs(np.log(filled[lm, :, 1:] / table.alone[lm, :, 1:])).mean() < 0.7
    assert np.isnan(filled[a3c, :, 1:]).all()


def test_pairs_of_several_workers_are_completed_too():
    truth = catalogue()
    several = truth.distributed()
    both = Profiles(
        workloads=tuple(np.array(truth.workloads)[several]),
        types=truth.types,
        sizes=(1, 2),
        alone=truth.alone[several][:, :, :2],
        together=np.stack([kept(truth)[:, several][:, :, several]] * 2, axis=1)
        * truth.alone[several][:, :, :2].transpose(1, 2, 0)[..., None],
    )
    references, seen, rng = drawn(both, 12, 0.5, 3)
    answer = completed(seen, rng, references=references)
    for at in range(2):
        hole = np.isnan(seen.together[:, at])
        mean = np.nanmean(kept(seen, at), axis=(1, 2))[:, None, None]
        ours = np.abs(kept(answer.profiles, at) - kept(both, at))[hole].mean()
        assert ours < 0.8 * np.abs(mean - kept(both, at))[hole].mean()


def test_references_are_found_if_none_are_named():
    _, seen, _ = drawn(catalogue(), 16, 0.3, 1)
    found = completed(seen, np.random.default_rng(5))
    assert not np.isnan(found.profiles.together[:, 0]).any()


def model(profiles, **fields):
    made = Completed(profiles, np.random.default_rng(7), profiles.workloads, profiles.types, **fields)
    made.bind(ALL, ALL)
    return made


def test_a_workload_measured_with_nobody_stays_unknown():
    seen = catalogue().together.copy()
    seen[:, :, 3] = seen[:, :, :, 3] = np.nan
    made = model(msgspec.structs.replace(catalogue(), together=seen))
    assert made.pair_rates(np.array(3), ALL, np.array(2), np.array(1)).max() == 0.0
    assert made.pair_confidence(np.array(3), ALL, np.array(2), np.array(1)).max() == 0.0
    assert made.pair_rates(np.array(4), np.array(5), np.array(2), np.array(1)).min() > 0.0


def test_one_generator_one_answer():
    seen = drawn(catalogue(), 10, 0.3, 2)[1]
    one, two = (model(seen).pair_rates(ALL[:, None], ALL, np.array(1), np.array(1)) for _ in range(2))
    assert one.tobytes() == two.tobytes()
    assert (one == one.transpose(1, 0, 2)[..., ::-1]).all()


def test_confidence_of_sizes_measured_completed_and_between():
    alone = catalogue().alone.copy()
    alone[0, 2] = np.nan
    made = model(msgspec.structs.replace(catalogue(), alone=alone))
    assert made.confidence(np.array(0), ints(0, 0, 0), ints(1, 3, 8)).tolist() == [1.0, 0.5, 1.0]
    on_a_type_never_seen = made.confidence(np.array(0), np.array(2), ints(0, 1, 2, 3, 8))
    assert on_a_type_never_seen[0] == 0.0
    assert ((on_a_type_never_seen[1:] > 0) & (on_a_type_never_seen[1:] <= 0.5)).all()
    assert on_a_type_never_seen[3] == on_a_type_never_seen[2] / 2
    assert made.rate(0, 2, 1) > 0


def test_pairs_that_ran_are_known_and_copies_learn_on_their_own():
    made = model(drawn(catalogue(), 10, 0.3, 2)[1])
    one, two, where = ints(3, 25, 99), ints(4, 25, 0), (np.array(2), np.array(1))
    twin = made.copy()
    before = twin.pair_rates(one, two, *where)
    made.observe_pairs(one, two, *where, np.array([[1.5, 2.5], [3.0, 3.0], [9.0, 9.0]]))
    assert made.pair_rates(one, two, *where).tolist() == [[1.5, 2.5], [3.0, 3.0], [0.0, 0.0]]
    assert made.pair_rates(ints(4), ints(3), *where).tolist() == [[2.5, 1.5]]
    assert made.pair_confidence(one, two, *where).tolist() == [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
    assert (twin.pair_rates(one, two, *where) == before).all()
