"""Runs a test with HiGHS alone, and with the price kernels in front of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import kernel_modes


@pytest.fixture(params=["interpreted", "compiled"])
def both_methods(request: pytest.FixtureRequest) -> Iterator[None]:
    """numpy's kernels leave all to HiGHS, numba's find prices."""
    before = kernel_modes.active()
    kernel_modes.use(request.param)
    yield
    kernel_modes.use(before)
