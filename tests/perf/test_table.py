"""`TableModel`: declared values exactly, documented values for missing ones."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from levada.perf import JobSpeed, PairSpeed, TableModel, ThroughputModel, remaining_s
from tests.perf.builders import ints

VALUES = st.floats(0.01, 100.0)
TABLES = st.dictionaries(st.integers(2, 64), VALUES, max_size=10)
ANY = np.array(0)


def table(**fields):
    return TableModel([JobSpeed(job=7, **fields)])


def speedups_of(model, *sizes):
    return model.speedups(np.array(7), ANY, ints(*sizes)).tolist()


def test_a_table_is_a_throughput_model():
    model: ThroughputModel = table()
    assert model.rate(7, 0, 3) == 3.0


@given(TABLES, VALUES, st.integers(1, 64))
def test_declared_speedups_are_returned_bit_for_bit(points, throughput, scale_factor):
    points = points | {1: 1.0}
    model = table(speedup=points, throughput={0: throughput}, scale_factor=scale_factor)
    assert speedups_of(model, *points) == list(points.values())
    assert speedups_of(table(speedup=points), *points) == list(points.values())


def test_negative_scaling_is_returned_as_declared():
    points = {0: 0.0, 1: 1.0, 2: 0.75, 3: 0.5, 4: 0.5}
    assert speedups_of(table(speedup=points), 0, 1, 2, 3, 4) == [0.0, 1.0, 0.75, 0.5, 0.5]


def test_missing_sizes_are_interpolated_and_flat_beyond_the_largest():
    assert speedups_of(table(speedup={1: 1.0, 2: 1.5, 6: 3.5}), 3, 4, 5, 6, 7, 1000) == [2.0, 2.5, 3.0, 3.5, 3.5, 3.5]


def test_one_worker_has_speedup_one_even_if_not_declared():
    assert speedups_of(table(speedup={5: 3.0}), 0, 1, 3, 5) == [0.0, 1.0, 2.0, 3.0]
    assert speedups_of(table(speedup={2: 1.8}), 1, 2) == [1.0, 1.8]


def test_speedups_are_normalized_by_the_value_at_one_worker():
    assert speedups_of(table(speedup={1: 4.0, 2: 6.0}), 1, 2) == [1.0, 1.5]


def test_without_a_table_speedup_is_linear():
    assert speedups_of(table(), 0, 1, 5, 500) == [0, 1, 5, 500]
    assert speedups_of(table(throughput={0: 8.0}, scale_factor=4), 0, 1, 5, 500) == [0, 1, 5, 500]


@given(TABLES, VALUES, st.integers(1, 64))
def test_the_declared_throughput_holds_at_the_scale_factor(points, throughput, scale_factor):
    model = table(speedup=points, throughput={3: throughput}, scale_factor=scale_factor)
    assert model.rate(7, 3, scale_factor) == throughput


def test_throughput_scales_by_the_speedup_relative_to_the_scale_factor():
    model = table(speedup={1: 1.0, 2: 1.5, 4: 3.0}, throughput={0: 6.0, 1: 0.0}, scale_factor=2)
    assert model.rates(np.array(7), ANY, ints(0, 1, 2, 4)).tolist() == [0.0, 4.0, 6.0, 12.0]
    assert model.rates(np.array(7), np.array(1), ints(1, 2, 4)).tolist() == [0.0, 0.0, 0.0]


def test_undeclared_types_have_rate_zero_unless_none_is_declared():
    assert table(throughput={0: 6.0}).rate(7, 1, 1) == 0.0
    assert table(throughput={0: 6.0}).rate(7, 99, 1) == 0.0
    assert table(speedup={1: 1.0, 2: 1.5}).rate(7, 99, 2) == 1.5


def test_a_type_with_rate_zero_has_infinite_remaining_time():
    model = table(speedup={1: 1.0, 2: 1.5}, throughput={0: 0.0})
    assert speedups_of(model, 0, 1, 2) == [0, 1, 2]
    remaining = remaining_s(model, np.full(2, 7), np.zeros(2, np.int64), np.array([5.0, 0.0]))
    assert remaining.tolist() == [np.inf, 0.0]


def test_a_job_that_is_not_in_the_table_is_linear_and_unknown():
    model = TableModel([JobSpeed(job=7, speedup={2: 1.5}), JobSpeed(job=9), JobSpeed(job=8, throughput={0: 1.0})])
    assert model.known(ints(6, 7, 8, 9, 10**12)).tolist() == [False, True, True, False, False]
    assert model.rates(ints(6, 10), ANY, np.array(3)).tolist() == [3.0, 3.0]


def test_arguments_broadcast_like_those_of_a_ufunc():
    model = TableModel([JobSpeed(job=job, throughput={0: 1.0 + job, 1: 10.0 + job}) for job in (3, 1, 2)])
    jobs, gpu_types, sizes = ints(1, 2, 3)[:, None, None], ints(0, 1)[:, None], ints(1, 2, 4, 8)
    answer = model.rates(jobs, gpu_types, sizes)
    assert answer.shape == (3, 2, 4)
    assert model.speedups(jobs, gpu_types, sizes).shape == (3, 2, 4)
    for i, job in enumerate((1, 2, 3)):
        for k in (0, 1):
            for s, size in enumerate((1, 2, 4, 8)):
                assert answer[i, k, s] == model.rate(job, k, size)


def test_a_gpu_fraction_scales_the_rate_and_several_gpus_do_not():
    model = table(throughput={0: 8.0})
    assert [model.rate(7, 0, 2, milli=milli) for milli in (0, 250, 1000, 4000)] == [16.0, 4.0, 16.0, 16.0]


def test_pair_rates_are_symmetric():
    jobs = [JobSpeed(job=5, speedup={1: 1.0, 2: 1.5}), JobSpeed(job=3), JobSpeed(job=4)]
    model = TableModel(jobs, [PairSpeed(a=3, b=5, throughput={1: (0.5, 0.25)})])
    assert model.pair_rates(ints(3, 5), ints(5, 3), np.array(1), np.array(1)).tolist() == [[0.5, 0.25], [0.25, 0.5]]
    assert model.pair_rates(np.array(3), np.array(5), np.array(1), np.array(2)).tolist() == [1.0, 0.375]


def test_undeclared_pairs_have_rate_zero():
    model = TableModel([JobSpeed(job=3), JobSpeed(job=5)], [PairSpeed(a=5, b=3, throughput={1: (0.5, 0.25)})])
    answer = model.pair_rates(ints(3, 3, 99)[:, None], ints(3, 99, 98)[:, None], ints(0, 1), np.array(1))
    assert answer.shape == (3, 2, 2)
    assert not answer.any()
    assert not model.pair_rates(np.array(3), np.array(5), np.array(0), np.array(1)).any()


def test_a_restart_costs_the_declared_time_unless_nothing_changes():
    model = TableModel([], restart_s=12.0)
    assert [model.restart_cost_s(1, *change) for change in ((0, 2), (2, 4), (4, 0), (4, 4))] == [12.0, 12.0, 12.0, 0.0]


@pytest.mark.parametrize(
    "jobs",
    [
        [JobSpeed(job=1), JobSpeed(job=1)],
        [JobSpeed(job=1, speedup={1: 0.0})],
        [JobSpeed(job=1, speedup={2: float("nan")})],
        [JobSpeed(job=1, speedup={-2: 1.0})],
        [JobSpeed(job=1, throughput={0: -1.0})],
        [JobSpeed(job=1, throughput={0: float("inf")})],
        [JobSpeed(job=1, throughput={-1: 1.0})],
        [JobSpeed(job=1, throughput={0: 1.0}, scale_factor=0)],
    ],
)
def test_invalid_speeds_are_rejected(jobs):
    with pytest.raises(ValueError):
        TableModel(jobs)


def test_a_pair_with_an_undeclared_job_is_rejected():
    with pytest.raises(ValueError):
        TableModel([JobSpeed(job=1)], [PairSpeed(a=1, b=2, throughput={0: (1.0, 1.0)})])


class RatesOnlyModel(ThroughputModel):
    """A minimal model: rates without speed-ups."""

    def rates(self, jobs, gpu_types, sizes):
        return np.where(gpu_types == 0, 3.0 * np.sqrt(sizes), 0.0) + 0.0 * jobs


def test_default_speedups_follow_from_rates():
    answer = RatesOnlyModel().speedups(np.array(1), ints(0, 1)[:, None], ints(0, 1, 4))
    assert answer.tolist() == [[0.0, 1.0, 2.0], [0.0, 1.0, 4.0]]


def test_remaining_time_assumes_one_worker():
    model = table(speedup={1: 1.0, 2: 1.5}, throughput={0: 6.0}, scale_factor=2)
    remaining = remaining_s(model, np.full(3, 7), np.zeros(3, np.int64), np.array([12.0, 0.0, -5.0]))
    assert remaining.tolist() == [3.0, 0.0, 0.0]
