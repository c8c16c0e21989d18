"""The compiled path-following method ends at the same point as the numpy one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.compat.gavel.solver.selfdual import ConstraintSets, SingleProgram, follow_path, solve_path
from levada.compat.gavel.solver.selfdual_ratio import follow_ratio
from levada.core.types import Floats
from levada.solve.highs import NoSolution
from tests import kernel_modes
from tests.kernel_modes import both_modes
from tests.kernels.mode_parity import equal_in_both_modes


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 20),
    types=st.integers(1, 4),
    sets=st.integers(1, 2),
    gains=st.booleans(),
)
def test_both_implementations_end_at_the_same_point(seed: int, rows: int, types: int, sets: int, gains: bool) -> None:
    rng = np.random.default_rng(seed)
    levels = ConstraintSets(
        c=rng.uniform(0.1, 10.0, (sets, rows, types)),
        base=np.zeros((sets, rows)),
        slope=np.stack([*[np.zeros(rows)] * (sets - 1), np.ones(rows)]),
        has=np.ones((sets, rows), np.bool_),
    )
    count, scale = rng.integers(1, 4, rows).astype(float), rng.choice([1.0, 2.0, 8.0], rows)
    capacity, gain = rng.integers(1, 37, types).astype(float), rng.uniform(0.0, 1.0, (rows, types)) if gains else None

    def end(compiled: bool) -> tuple[Floats, float] | None:
        try:
            if compiled:
                return follow_path(count, scale, capacity, levels, gain)
            return solve_path(SingleProgram(count, scale, capacity, levels, gain))
        except NoSolution:
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


@pytest.mark.parametrize("seed", range(6))
def test_ratio_is_equal_in_both_modes_and_feasible(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, types = 1 + seed % 4, 1 + seed % 3
    count, scale = rng.integers(1, 4, rows).astype(float), rng.choice([1.0, 2.0, 8.0], rows)
    capacity, rate = rng.integers(1, 37, types).astype(float), rng.uniform(0.1, 10.0, (rows, types))
    slope, elapsed_ratio = rng.uniform(0.01, 100.0, rows), rng.uniform(0.0, 3.0, rows)
    results, before = [], kernel_modes.active()
    try:
        for mode in kernel_modes.MODES:
            kernel_modes.use(mode)
            results.append(follow_ratio(count, scale, capacity, rate, slope, elapsed_ratio))
    finally:
        kernel_modes.use(before)
    (share, ratio), other = results
    assert (share.tobytes(), ratio) == (other[0].tobytes(), other[1])
    ratios = elapsed_ratio + slope / (rate * share).sum(axis=1)
    assert ratios.max() == pytest.approx(ratio, rel=1e-5)
    assert (share.sum(axis=1) < 1.0 + 1e-6).all()
    assert (count * scale @ share < capacity * (1.0 + 1e-6)).all()


def test_a_point_outside_its_cone_has_no_scaling() -> None:
    inside, outside = np.array([[1.0, 2.0, 1.0, 0.5]]), np.array([[1.0, 1.0, 1.0, 0.5]])
    for s, z in ((inside, inside), (inside, outside), (outside, inside)):
        result = equal_in_both_modes(both_modes("cones", "levada.compat.gavel.kernels"), "scaling", s, z, True, 7e-8)
        assert result[0] == (s is z)
    other = np.array([[3.0, 4.0, 1.0, -2.0]])
    _, scale, rotation, lam, *_ = equal_in_both_modes(
        both_modes("cones", "levada.compat.gavel.kernels"), "scaling", inside, other, True, 7e-8
    )
    assert equal_in_both_modes(
        both_modes("cones", "levada.compat.gavel.kernels"), "scaled", scale, rotation, other, 1.0
    ) == pytest.approx(lam)
    whole = equal_in_both_modes(both_modes("cones", "levada.compat.gavel.kernels"), "product", lam, inside, True)
    assert equal_in_both_modes(
        both_modes("cones", "levada.compat.gavel.kernels"), "quotient", whole, lam, True
    ) == pytest.approx(inside)
