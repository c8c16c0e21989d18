"""`kernels.checks`: valid and invalid numbers, the same in both modes."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.kernel_modes import Kernels
from tests.kernels.mode_parity import equal_in_both_modes

checks_interpreted = Kernels("checks", "interpreted")

KERNELS = checks_interpreted, Kernels("checks", "compiled")

NUMBERS = [1.0, 1.0, 1.0, 2.5, 0.0, -1.0, math.nan, math.inf]


@given(data=st.data(), jobs=st.integers(0, 3), types=st.integers(1, 2))
def test_invalid_numbers_are_rejected(data: st.DataObject, jobs: int, types: int) -> None:
    shapes = ((jobs, types), (jobs,), (jobs,), (types,))
    numbers = [data.draw(hnp.arrays(np.float64, shape, elements=st.sampled_from(NUMBERS))) for shape in shapes]
    _, weight, scale, _ = numbers
    natural = all(np.isfinite(array).all() and (array >= 0).all() for array in numbers)
    assert equal_in_both_modes(KERNELS, "sane", *numbers) == (natural and (weight > 0).all() and (scale > 0).all())


@given(data=st.data(), jobs=st.integers(0, 4), types=st.integers(1, 3))
def test_shares_beyond_time_or_capacity_are_infeasible(data: st.DataObject, jobs: int, types: int) -> None:
    parts = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 1.0 + 1e-9, math.nan, -0.25])
    share = data.draw(hnp.arrays(np.float64, (jobs, types), elements=parts))
    scale = data.draw(hnp.arrays(np.float64, (jobs,), elements=st.sampled_from([1.0, 2.0])))
    capacity = data.draw(hnp.arrays(np.float64, (types,), elements=st.sampled_from([0.0, 1.0, 3.0])))
    fits = bool(equal_in_both_modes(KERNELS, "feasible", share, scale, capacity, 1e-7))
    numbers = bool((share >= 0).all())
    time, use = share.sum(axis=1), scale @ share
    assert fits == (numbers and (time <= 1 + 1e-7).all() and (use <= capacity * (1 + 1e-7)).all())
