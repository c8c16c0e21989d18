"""Every test of placement runs with both implementations of the kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from levada.kernels import switch


@pytest.fixture(params=["numpy", "numba"], autouse=True, scope="package")
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "numba":
        pytest.importorskip("numba")
    before = switch.active()
    switch.use(request.param)
    yield
    switch.use("numba" if before == "numba" else "numpy")
