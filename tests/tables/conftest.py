"""Fixtures of table tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import kernel_modes


@pytest.fixture(params=["interpreted", "compiled"])
def both_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test with interpreted and with compiled kernels."""
    before = kernel_modes.active()
    if request.param == "compiled":
        pytest.importorskip("numba")
    kernel_modes.use(request.param)
    yield
    kernel_modes.use(before)
