"""Shares out of the time of a class: the same bytes in both modes, within what there is, and enough for every job."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel_modes import Kernels
from tests.kernels.twins import both

KERNELS: Any = (Kernels("shadow", "interpreted"), Kernels("shadow", "compiled"))


@given(
    classes=st.lists(
        st.lists(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), min_size=1, max_size=12), min_size=1, max_size=3
    ),
    rates=st.lists(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3), min_size=3, max_size=3),
)
def test_every_job_reaches_what_it_needs_out_of_the_time_of_its_class(
    classes: list[list[list[float]]], rates: list[list[float]]
) -> None:
    # Any shares that fit into one unit of time per job show that the needs can be met with their masses.
    given_shares = np.array([job for jobs in classes for job in jobs])
    given_shares /= np.maximum(given_shares.sum(axis=1, keepdims=True), 1.0)
    of = np.repeat(np.arange(len(classes)), [len(jobs) for jobs in classes])
    rate = np.array(rates)[: len(classes)]
    mass = np.stack([given_shares[of == row].sum(axis=0) for row in range(len(classes))])
    need = (rate[of] * given_shares).sum(axis=1)
    order = np.lexsort((-need, of))
    share = both(KERNELS, "shadow", rate, mass, of, order, need)
    assert (share >= 0).all()
    assert (share.sum(axis=1) <= 1 + 1e-9).all()
    for row in range(len(classes)):
        assert (share[of == row].sum(axis=0) <= mass[row] + 1e-9).all()
    assert ((rate[of] * share).sum(axis=1) >= need - 1e-6).all()
