"""`kernels.view`: blocks agree with the columns of the table, the same in both modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core import layout as c
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.kernels import view
from tests.kernel_modes import Kernels
from tests.kernels.mode_parity import equal_in_both_modes

view_interpreted = Kernels("view", "interpreted")

KERNELS = view_interpreted, Kernels("view", "compiled")
UNLIMITED = 1 << 50


def _block(rows: int, dtype: Any, columns: dict[int, Any]) -> Any:
    """A block of the table with these columns, and zeros in the others."""
    block = np.zeros((rows, len(next(iter(columns.values())))), dtype)
    for row, column in columns.items():
        block[row] = column
    return block


def _column(draw: st.DrawFn, values: st.SearchStrategy[Any], size: int, dtype: Any = np.int64) -> Any:
    return np.array(draw(st.lists(values, min_size=size, max_size=size)), dtype)


@given(data=st.data())
def test_jobs_have_allowed_sizes(data: st.DataObject) -> None:
    draw = data.draw
    slots_in_all, types = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    least = _column(draw, st.integers(0, 3), slots_in_all)
    step = _column(draw, st.integers(1, 3), slots_in_all)
    most = least + step * _column(draw, st.integers(0, 3), slots_in_all)
    desired = _column(draw, st.integers(0, 12), slots_in_all)
    milli = _column(draw, st.sampled_from([0, 500, 1000, 2000]), slots_in_all)
    cpu = _column(draw, st.sampled_from([0, 1000]), slots_in_all)
    kind = _column(draw, st.integers(-1, types - 1), slots_in_all)
    count = _column(draw, st.integers(0, 2), slots_in_all)
    columns = {c.NUMBER: np.arange(slots_in_all) + 10, c.MIN: least, c.MAX: most, c.STEP: step, c.DESIRED: desired}
    columns |= {c.MILLI: milli, c.CPU: cpu, c.TYPE: kind, c.COUNT: count}
    ints = _block(len(INT_COLUMNS), np.int64, columns)
    weight, running_s = np.linspace(0.5, 2.0, slots_in_all), np.linspace(0.0, 99.0, slots_in_all)
    floats = _block(len(FLOAT_COLUMNS), np.float64, {c.WEIGHT: weight, c.RUNNING_S: running_s})
    slots = np.array(draw(st.lists(st.integers(0, slots_in_all - 1), unique=True)), np.int64)
    preference = _column(draw, st.sampled_from([0, 1, 32767]), types * len(slots), np.int16).reshape(types, -1)
    exists = _column(draw, st.integers(0, 1), types)
    capacity = _column(draw, st.sampled_from([-1000, 0, 1500, 5000, UNLIMITED]), types)
    places = np.arange(len(slots))
    jobs, reals, allowed = equal_in_both_modes(
        KERNELS, "jobs", ints, floats, slots, preference, places, exists, capacity
    )
    assert (jobs[view.NUMBER] == slots + 10).all()
    assert reals.tolist() == [weight[slots].tolist(), running_s[slots].tolist()]
    for row, slot in enumerate(slots):
        size, unit = jobs[view.SIZE, row], jobs[view.UNIT, row]
        assert least[slot] <= size <= most[slot]
        assert (size - least[slot]) % step[slot] == 0
        holds = [capacity[k] // max(unit, 1) for k in range(types) if allowed[row, k]]
        assert size <= max([*holds, least[slot]])
        assert size <= max(desired[slot], least[slot])
        assert jobs[view.RUNS, row] == (kind[slot] if count[slot] > 0 else -1)


@given(data=st.data())
def test_amounts_are_in_whole_gpus_and_cores_suffice(data: st.DataObject) -> None:
    draw = data.draw
    count, types = draw(st.integers(0, 12)), draw(st.integers(1, 3))
    size = _column(draw, st.integers(0, 5), count)
    milli, cpu = (_column(draw, st.sampled_from([0, 500, 1000, 4000]), count) for _ in range(2))
    unit = np.where(milli > 0, milli, cpu)
    zeros = np.zeros(count, np.int64)
    jobs = np.stack([zeros, size, unit, zeros, zeros, milli])
    entity, workload, servers = (_column(draw, st.integers(0, 2), count) for _ in range(3))
    capacity = _column(draw, st.sampled_from([0, 700, 9000, UNLIMITED]), types)
    slots = np.array(draw(st.permutations(range(count))), np.int64)
    ints = _block(len(INT_COLUMNS), np.int64, {c.ENTITY: entity, c.WORKLOAD: workload, c.SERVERS: servers})
    scale, room, alike = equal_in_both_modes(KERNELS, "amounts", jobs, ints, slots, capacity)
    assert scale.tolist() == [s * max(u, 1) / 1000 for s, u in zip(size.tolist(), unit.tolist(), strict=True)]
    assert room[1:].tolist() == (capacity[1:] / 1000).tolist()
    cores = scale[milli == 0].sum()
    assert room[0] == pytest.approx(min(capacity[0] / 1000, cores) + scale[unit == 0].sum())
    assert (alike[:2] == [entity[slots], workload[slots]]).all()
    assert (alike[2] == ((milli == 1000) & (servers[slots] == 0))).all()
