"""A server goes over to compiled kernels while it runs, and goes on without them where there are none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from levada import jit
from levada.kernels import checks
from levada.server.kernel_loader import load_kernels

pytest.importorskip("numba")


@pytest.fixture(autouse=True)
def _interpreted_again() -> Iterator[None]:
    yield
    jit.uninstall()


def test_a_large_server_loads_what_the_cache_holds() -> None:
    if not jit.is_ready():
        pytest.skip("the cache of compiled kernels is empty: run `levada precompile`")
    asyncio.run(load_kernels(lambda: 1_000))
    assert jit.is_compiled()
    one = np.ones(1)
    assert checks.sane(np.ones((1, 1)), one, one, one)


def test_a_small_server_interprets() -> None:
    async def short() -> None:
        loading = asyncio.create_task(load_kernels(lambda: 10))
        await asyncio.sleep(0)
        assert not loading.done()
        loading.cancel()
        await asyncio.wait([loading])

    asyncio.run(short())
    assert not jit.is_compiled()


def test_a_cache_that_cannot_be_filled_is_logged_and_the_server_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LEVADA_KERNEL_CACHE", str(tmp_path / "file"))
    # A compiler that fails at once stands for one that runs out of memory, or is killed.
    monkeypatch.setattr("levada.server.kernel_loader._FILL_CACHE", "raise SystemExit('no memory')")
    with caplog.at_level(logging.WARNING):
        asyncio.run(load_kernels(lambda: 1_000))
    assert not jit.is_compiled()
    (record,) = caplog.records
    assert "no memory" in record.getMessage()
    assert "LEVADA_KERNEL_CACHE" in record.getMessage()
