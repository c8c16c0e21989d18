"""`kernels.classes`: rows of equal jobs, the same in both modes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.kernel_modes import Kernels
from tests.kernels.mode_parity import equal_in_both_modes

classes_interpreted = Kernels("classes", "interpreted")

KERNELS = classes_interpreted, Kernels("classes", "compiled")

FEW = st.sampled_from([-0.0, 0.0, 1.0, 1.5, 0.1 + 0.2, 0.3])


@given(keys=hnp.arrays(np.float64, st.tuples(st.integers(0, 40), st.integers(1, 3)), elements=FEW))
def test_equal_rows_have_one_class(keys: np.ndarray) -> None:
    first, of = equal_in_both_modes(KERNELS, "distinct_rows", keys)
    known: dict[tuple[float, ...], int] = {}
    for row, key in enumerate(map(tuple, keys.tolist())):
        assert of[row] == known.setdefault(key, len(known))
        assert first[of[row]] <= row
    assert len(first) == len(known)


@given(jobs=st.lists(st.tuples(st.integers(0, 3), FEW), max_size=40))
def test_a_group_has_one_row_and_one_favour(jobs: list[tuple[int, float]]) -> None:
    row, favour = np.array([job[0] for job in jobs], np.int64), np.array([job[1] for job in jobs], np.float64)
    rows, favours, count, of = equal_in_both_modes(KERNELS, "groups", row, favour)
    assert rows[of].tolist() == row.tolist()
    assert favours[of].tolist() == favour.tolist()
    assert count.tolist() == [of.tolist().count(group) for group in range(len(rows))]
    assert len({*zip(rows.tolist(), favours.tolist(), strict=True)}) == len(rows)


@given(data=st.data(), jobs=st.integers(0, 12), types=st.integers(1, 4), weighted=st.booleans())
def test_a_row_equals_its_jobs(data: st.DataObject, jobs: int, types: int, weighted: bool) -> None:
    def drawn(values: list[float], *shape: int) -> np.ndarray:
        return data.draw(hnp.arrays(np.float64, shape, elements=st.sampled_from(values)))

    rate, believed = drawn([0.0, 0.7, 2.0], jobs, types), drawn([0.3, 1.0], jobs, types)
    scale, weight = drawn([1.0, 4.0], jobs), drawn([1.0, 5.0], jobs)
    capacity, alike = drawn([0.0, 2.0, 9.0], types), drawn([0, 1], 3, jobs).astype(np.int64)
    rates, scales, weights, entity, of = equal_in_both_modes(
        KERNELS, "rows_of", believed, rate, scale, weight, capacity, alike, weighted
    )
    able = (rate > 0) & (scale[:, None] <= capacity)
    assert rates[of].tolist() == np.where(able, believed, 0.0).tolist()
    assert scales[of].tolist() == scale.tolist()
    assert entity[of].tolist() == alike[0].tolist()
    lost = (rates[of] @ capacity > 0) & ((believed * ~able) @ capacity > 0)
    assert (weights[of][lost] > weight[lost]).all() if weighted else (weights == 1).all()
    assert len({(row, *alike[:, job].tolist()) for job, row in enumerate(of.tolist())}) == len(rates)
