"""Runs a test with HiGHS alone, and with the price kernels in front of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from levada.kernels import switch


@pytest.fixture(params=["numpy", "numba"])
def both_methods(request: pytest.FixtureRequest) -> Iterator[None]:
    """numpy's kernels leave all to HiGHS, numba's find prices."""
    before = switch.active()
    switch.use(request.param)
    yield
    switch.use("numba" if before == "numba" else "numpy")
