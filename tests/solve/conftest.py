"""Run a test with HiGHS alone, and with the price kernels before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import kernel_modes


@pytest.fixture(params=["interpreted", "compiled"])
def both_methods(request: pytest.FixtureRequest) -> Iterator[None]:
    """Interpreted kernels use HiGHS only; compiled ones try prices first."""
    before = kernel_modes.active()
    kernel_modes.use(request.param)
    yield
    kernel_modes.use(before)
