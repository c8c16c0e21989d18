"""`kernels.class_split`: shares are within the time of a class and sufficient, the same in both modes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel_modes import Kernels
from tests.kernels.mode_parity import equal_in_both_modes

KERNELS: Any = (Kernels("class_split", "interpreted"), Kernels("class_split", "compiled"))


@given(
    classes=st.lists(
        st.lists(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), min_size=1, max_size=12), min_size=1, max_size=3
    ),
    rates=st.lists(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3), min_size=3, max_size=3),
)
def test_every_job_gets_the_rate_that_it_needs(classes: list[list[list[float]]], rates: list[list[float]]) -> None:
    # Random feasible shares define masses with which the needs can be met.
    given_shares = np.array([job for jobs in classes for job in jobs])
    given_shares /= np.maximum(given_shares.sum(axis=1, keepdims=True), 1.0)
    class_of = np.repeat(np.arange(len(classes)), [len(jobs) for jobs in classes])
    rate = np.array(rates)[: len(classes)]
    mass = np.stack([given_shares[class_of == row].sum(axis=0) for row in range(len(classes))])
    need = (rate[class_of] * given_shares).sum(axis=1)
    order = np.lexsort((-need, class_of))
    share = equal_in_both_modes(KERNELS, "split_classes", rate, mass, class_of, order, need)
    assert (share >= 0).all()
    assert (share.sum(axis=1) <= 1 + 1e-9).all()
    for row in range(len(classes)):
        assert (share[class_of == row].sum(axis=0) <= mass[row] + 1e-9).all()
    assert ((rate[class_of] * share).sum(axis=1) >= need - 1e-6).all()
