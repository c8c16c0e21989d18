"""Run every placement test with interpreted and compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import kernel_modes


@pytest.fixture(params=["interpreted", "compiled"], autouse=True, scope="package")
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled":
        pytest.importorskip("numba")
    before = kernel_modes.active()
    kernel_modes.use(request.param)
    yield
    kernel_modes.use(before)
