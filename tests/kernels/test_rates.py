"""`kernels.rates`: rates equal the table, the same in both modes."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from levada.core import layout as c
from tests.kernel_modes import Kernels
from tests.kernels.mode_parity import equal_in_both_modes

rates_interpreted = Kernels("rates", "interpreted")

KERNELS = rates_interpreted, Kernels("rates", "compiled")


@given(data=st.data())
def test_look_up_clips_to_the_table(data: st.DataObject) -> None:
    rows, columns, width = 3, 2, 4
    table = np.arange(rows * columns * width, dtype=np.float64).reshape(rows, columns, width)
    row_of = np.array(data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=5)), np.int32)
    column_of = np.array(data.draw(st.lists(st.integers(0, columns - 1), min_size=1, max_size=5)), np.int32)
    asked = data.draw(st.lists(st.tuples(st.integers(-2, 7), st.integers(-1, 6)), max_size=5))
    jobs = np.array([job for job, _ in asked], np.int64)
    sizes = np.array([size for _, size in asked], np.int64)
    result = equal_in_both_modes(KERNELS, "look_up", table, row_of, column_of, jobs, sizes, 3)
    for at, (job, size) in enumerate(asked):
        for kind in range(3):
            row = row_of[min(max(job + 1, 0), len(row_of) - 1)]
            column = column_of[min(kind + 1, len(column_of) - 1)]
            assert result[at, kind] == table[row, column, min(max(size, 0), width - 1)]


@given(data=st.data())
def test_look_up_each_uses_one_type_per_job(data: st.DataObject) -> None:
    table = np.arange(24, dtype=np.float64).reshape(3, 2, 4)
    row_of, column_of = np.array([2, 0, 1, 2], np.int32), np.array([1, 0, 1], np.int32)
    asked = data.draw(st.lists(st.tuples(st.integers(-2, 7), st.integers(-2, 5), st.integers(-1, 6)), max_size=5))
    jobs, types, sizes = (np.array([row[i] for row in asked], np.int64) for i in range(3))
    result = equal_in_both_modes(KERNELS, "look_up_each", table, row_of, column_of, jobs, types, sizes)
    for at, (job, kind, size) in enumerate(asked):
        row, column = row_of[min(max(job + 1, 0), 3)], column_of[min(max(kind + 1, 0), 2)]
        assert result[at] == table[row, column, min(max(size, 0), 3)]


@given(data=st.data())
def test_a_job_has_no_rate_where_it_may_not_run(data: st.DataObject) -> None:
    jobs, types = data.draw(st.integers(0, 5)), data.draw(st.integers(1, 4))
    size = jobs * types
    rate = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.3, 1.0, 7.0]), min_size=size, max_size=size)))
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool)
    milli = np.array(data.draw(st.lists(st.sampled_from([0, 500, 1000]), min_size=jobs, max_size=jobs)), np.int64)
    rate, allowed = rate.reshape(jobs, types), allowed.reshape(jobs, types)
    best, relative = equal_in_both_modes(KERNELS, "mask_rates", rate, allowed, milli)
    assert (relative[~allowed] == 0).all()
    assert (relative.max(axis=1, initial=0.0)[best > 0] == 1).all()
    on_cores = (milli == 0) & allowed[:, 0]
    assert (relative[on_cores, 0] > 0).all()


@given(data=st.data())
def test_halvings_bracket_the_remaining_time(data: st.DataObject) -> None:
    amounts = st.sampled_from([math.nan, 0.0, 1e-9, 1.0, 59.0, 60.0, 1000.0, 1e6, 1e12, 1e300])
    jobs = data.draw(st.integers(0, 6))
    floats = np.zeros((c.OP_DEADLINE + 1, jobs + 2))
    slots = np.array(data.draw(st.permutations(range(jobs + 2)))[:jobs], np.int64)
    for column in (c.STEPS, c.STEPS_DONE):
        floats[column, slots] = [data.draw(amounts) for _ in range(jobs)]
    scale = np.array([data.draw(st.sampled_from([1.0, 2.0, 8.0])) for _ in range(jobs)])
    best = np.array([data.draw(st.sampled_from([0.0, 1e-6, 1.0, 30.0])) for _ in range(jobs)])
    result = equal_in_both_modes(KERNELS, "halvings", floats, slots, scale, best, 3600.0, 5)
    assert ((result >= 0) & (result <= 5)).all()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        needs = (floats[c.STEPS, slots] - floats[c.STEPS_DONE, slots]) * scale / best
    for times, need in zip(result.tolist(), needs.tolist(), strict=True):
        if not 0 < need < math.inf:
            assert times == 0
        elif times:
            assert need < 3600.0 / 2**times
        if 0 < need < 3600.0:
            assert times == 5 or need >= 3600.0 / 2 ** (times + 1)
