"""`ProfileModel`: measured rates exactly, documented values for missing ones, independent copies."""

import timeit

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from levada.core.names import Names
from levada.perf import ProfileModel, Profiles, ThroughputModel
from tests.perf.builders import ints

NAN = float("nan")
RATES = st.one_of(st.just(NAN), st.just(0.0), st.floats(0.01, 100.0))


def profile(*rates, sizes=(1, 2, 4, 8), **fields):
    """One workload `w` on one type `t`."""
    return Profiles(workloads=("w",), types=("t",), sizes=sizes, alone=np.array([[rates]]), **fields)


def build_model(profiles):
    """Job n runs the n-th workload; types are numbered as in the table."""
    profile_model = ProfileModel(profiles, profiles.workloads, profiles.types)
    profile_model.bind(np.arange(len(profiles.workloads)), np.arange(len(profiles.workloads)))
    return profile_model


@st.composite
def tables(draw):
    workloads, types = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    sizes = tuple(sorted(draw(st.sets(st.integers(1, 12), min_size=1, max_size=4))))

    def array(*shape):
        return np.array(draw(st.lists(RATES, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))).reshape(
            shape
        )

    return Profiles(
        workloads=tuple(f"w{n}" for n in range(workloads)),
        types=tuple(f"t{n}" for n in range(types)),
        sizes=sizes,
        alone=array(workloads, types, len(sizes)),
        spread=draw(st.sampled_from([None, array(workloads, types, len(sizes))])),
        together=array(types, len(sizes), workloads, workloads),
        restart_s=np.arange(workloads, dtype=np.float64),
    )


def measured_grid(profiles):
    jobs, types = np.arange(len(profiles.workloads)), np.arange(len(profiles.types))
    return jobs[:, None, None], types[:, None], np.array(profiles.sizes)


def test_profile_model_is_a_throughput_model():
    model: ThroughputModel = build_model(profile(3.0, 5.0, 6.0, 7.0))
    assert model.rate(0, 0, 2) == 5.0


@given(tables())
def test_measured_rates_are_returned_bit_for_bit(profiles):
    model = build_model(profiles)
    jobs, types, sizes = measured_grid(profiles)
    measured = ~np.isnan(profiles.alone)
    assert (model.rates(jobs, types, sizes)[measured] == profiles.alone[measured]).all()
    pairs = np.nan_to_num(profiles.together)
    rates = model.pair_rates(jobs, np.arange(len(jobs))[:, None, None, None], types, sizes)
    measured = ~np.isnan(profiles.together.transpose(3, 2, 0, 1))
    assert (rates[..., 0][measured] == pairs.transpose(3, 2, 0, 1)[measured]).all()
    for row, gpu_type, size in np.ndindex(profiles.alone.shape):
        has_spread = profiles.spread is not None and not np.isnan(profiles.spread[row, gpu_type, size])
        expected = profiles.spread if has_spread else profiles.alone
        if has_spread or (profiles.spread is None and not np.isnan(expected[row, gpu_type, size])):
            assert model.rate(row, gpu_type, profiles.sizes[size], spread=2) == expected[row, gpu_type, size]


@given(tables())
def test_rates_are_finite_and_equal_for_scalars_and_arrays(profiles):
    model = build_model(profiles)
    jobs, types, sizes = np.arange(-1, 6)[:, None, None], np.arange(-1, 5)[:, None], np.arange(-1, 16)
    rates = model.rates(jobs, types, sizes)
    assert np.isfinite(rates).all()
    assert (rates >= 0).all()
    assert (rates[..., sizes <= 0] == 0).all()
    confidence = model.confidence(jobs, types, sizes)
    assert ((confidence >= 0) & (confidence <= 1)).all()
    for job, gpu_type, size in ((0, 0, 1), (0, 0, 7), (5, 0, 3), (0, 4, 2)):
        assert model.rate(job, gpu_type, size) == rates[job + 1, gpu_type + 1, size + 1]


@given(st.lists(st.floats(0.01, 100.0), min_size=4, max_size=4).map(sorted))
def test_rates_rise_with_workers_if_measured_rates_do(rates):
    answer = build_model(profile(*rates)).rates(np.array(0), np.array(0), np.arange(20))
    assert (np.diff(answer) >= -1e-12 * answer[1:]).all()
    assert (answer[8:] == rates[-1]).all()


@given(tables())
def test_pair_rates_are_symmetric(profiles):
    model = build_model(profiles)
    jobs, types, sizes = np.arange(len(profiles.workloads)), np.arange(len(profiles.types)), np.arange(14)
    one = model.pair_rates(jobs[:, None, None, None], jobs[:, None, None], types[:, None], sizes)
    assert (one == one.transpose(1, 0, 2, 3, 4)[..., ::-1]).all()


def test_missing_sizes_are_interpolated_and_flat_beyond_the_largest():
    holes = build_model(profile(NAN, 4.0, NAN, 16.0)).rates(np.array(0), np.array(0), ints(0, 1, 2, 4, 8, 9, 1000))
    assert holes == pytest.approx([0, 2, 4, 8, 16, 16, 16])


def test_missing_sizes_next_to_an_impossible_size_are_impossible():
    assert build_model(profile(3.0, NAN, 0.0, 5.0)).rates(np.array(0), np.array(0), ints(1, 2, 3, 4, 5, 7, 8)).tolist() == [
        3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0,
    ]  # fmt: skip


def test_missing_spread_rates_use_the_ratio_of_the_nearest_size():
    spread = np.array([[[10.0, 5.0, NAN, NAN]]])
    model = build_model(profile(10.0, 20.0, NAN, 80.0, spread=spread))
    assert [model.rate(0, 0, n, spread=3) for n in (1, 2, 4, 8, 16)] == pytest.approx([10, 5, 10, 20, 20])
    only_one = build_model(profile(10.0, 20.0, 40.0, 80.0, spread=np.array([[[9.0, NAN, NAN, NAN]]])))
    assert [only_one.rate(0, 0, n, spread=2) for n in (1, 2, 8)] == [9.0, 20.0, 80.0]


def test_a_size_measured_only_spread_has_the_same_rate_on_few_nodes():
    model = build_model(profile(10.0, NAN, NAN, NAN, spread=np.array([[[NAN, NAN, NAN, 30.0]]])))
    assert model.rate(0, 0, 8) == model.rate(0, 0, 8, spread=4) == 30.0


def test_a_fraction_of_a_gpu_gives_that_fraction():
    assert build_model(profile(8.0, 9.0, 9.5, 9.9)).rate(0, 0, 1, milli=250) == 2.0


def test_unknown_workloads_are_linear_and_unknown_types_have_rate_zero():
    model = ProfileModel(profile(8.0, 9.0, 9.5, 9.9), Names(["other", "w"]), Names(["cpu", "t"]))
    model.bind(ints(0, 1), ints(1, 0))
    assert model.known(ints(-1, 0, 1, 2, 99)).tolist() == [False, True, False, False, False]
    assert model.rates(np.array(0), ints(-1, 0, 1, 2), np.array(1)).tolist() == [0.0, 0.0, 8.0, 0.0]
    assert model.rates(ints(1, 7), np.array(1), np.array(3)).tolist() == [3.0, 3.0]
    assert model.pair_rates(np.array(0), np.array(1), np.array(1), np.array(1)).tolist() == [0.0, 0.0]


def test_names_may_be_added_after_construction():
    workloads, types = Names([""]), Names(["cpu"])
    model = ProfileModel(profile(8.0, 9.0, 9.5, 9.9), workloads, types)
    model.bind(ints(0), ints(0))
    assert model.rate(0, 1, 1) == 1.0
    model.bind(ints(40), np.array([workloads.add("w")]))
    assert model.rate(40, types.add("t"), 1) == 8.0
    assert not model.known(ints(0))[0]


def test_a_copy_is_independent():
    workloads, types = Names(["", "w"]), Names(["cpu", "t"])
    model = ProfileModel(profile(8.0, 9.0, 9.5, 9.9), workloads, types)
    model.bind(ints(0), ints(1))
    twin = model.copy()
    model.unbind(ints(0, 500))
    model.bind(ints(1), ints(1))
    assert twin.known(ints(0, 1)).tolist() == [True, False]
    assert model.known(ints(0, 1)).tolist() == [False, True]
    # The copy is attached to other names and ignores later names of the original.
    workloads.add("x")
    own = Names(["", "w"])
    twin.attach(own, types)
    twin.bind(ints(2), np.array([own.add("y")]))
    twin.bind(ints(3), ints(1))
    assert twin.known(ints(2, 3)).tolist() == [False, True]


def test_restart_costs_are_by_workload_and_the_mean_for_unknown_ones():
    profiles = Profiles(
        workloads=("a", "b"), types=("t",), sizes=(1,), alone=np.ones((2, 1, 1)), restart_s=np.array([10.0, 30.0])
    )
    model = build_model(profiles)
    assert model.restart_cost_s(1, 2, 4) == 30.0
    assert model.restart_costs_s(ints(0, 1, 9, 0), ints(1, 1, 1, 3), ints(2, 0, 2, 3)).tolist() == [10, 30, 20, 0]


def test_distributed_workloads_have_a_rate_with_several_workers():
    rates = np.array([[[1.0, NAN]], [[1.0, 2.0]], [[1.0, 0.0]]])
    assert Profiles(workloads=("a", "b", "c"), types=("t",), sizes=(1, 2), alone=rates).distributed().tolist() == [
        False, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"alone": np.ones((1, 1, 1))},
        {"alone": -np.ones((1, 1, 4))},
        {"alone": np.full((1, 1, 4), np.inf)},
        {"sizes": (2, 1, 4, 8)},
        {"sizes": (0, 1, 2, 4)},
        {"types": ("t", "t")},
        {"restart_s": np.array([NAN])},
        {"together": np.ones((1, 1, 4, 1))},
    ],
)
def test_invalid_profiles_are_rejected(fields):
    with pytest.raises(ValueError):
        Profiles(**{"workloads": ("w",), "types": ("t",), "sizes": (1, 2, 4, 8), "alone": np.ones((1, 1, 4))} | fields)


def test_rates_of_a_thousand_jobs_are_vectorized():
    model = build_model(profile(8.0, 9.0, 9.5, 9.9))
    model.bind(np.arange(1000), np.zeros(1000, np.int64))
    jobs, types, sizes = np.arange(1000)[:, None], np.arange(4), np.full((1000, 1), 2)
    best = min(timeit.repeat(lambda: model.rates(jobs, types, sizes), number=50, repeat=5)) / 50
    assert best < 500e-6  # about 30 µs on an idle machine; the limit detects a loop over jobs
