"""The compiled walk of `solve.selfdual` ends where the one in numpy does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.core.types import Floats
from levada.solve.highs import NoAnswer
from levada.solve.selfdual import Alone, Levels, follow, walk
from tests import kernel_modes


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 20),
    types=st.integers(1, 4),
    sets=st.integers(1, 2),
    gains=st.booleans(),
)
def test_both_end_at_the_same_point(seed: int, rows: int, types: int, sets: int, gains: bool) -> None:
    rng = np.random.default_rng(seed)
    levels = Levels(
        c=rng.uniform(0.1, 10.0, (sets, rows, types)),
        base=np.zeros((sets, rows)),
        pace=np.stack([*[np.zeros(rows)] * (sets - 1), np.ones(rows)]),
        has=np.ones((sets, rows), np.bool_),
    )
    count, scale = rng.integers(1, 4, rows).astype(float), rng.choice([1.0, 2.0, 8.0], rows)
    capacity, gain = rng.integers(1, 37, types).astype(float), rng.uniform(0.0, 1.0, (rows, types)) if gains else None

    def end(compiled: bool) -> tuple[Floats, float] | None:
        try:
            if compiled:
                return follow(count, scale, capacity, levels, gain)
            return walk(Alone(count, scale, capacity, levels, gain))
        except NoAnswer:
            return None

    before = kernel_modes.active()
    kernel_modes.use("compiled")
    try:
        one, other = end(False), end(True)
    finally:
        kernel_modes.use(before)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert other[0] == pytest.approx(one[0], abs=1e-6)
        assert other[1] == pytest.approx(one[1], rel=1e-6, abs=1e-6)
