"""A running server switches to compiled kernels, and keeps interpreted ones if it cannot."""

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


async def test_a_large_server_loads_cached_kernels() -> None:
    if not jit.is_ready():
        pytest.skip("the cache of compiled kernels is empty: run `levada precompile`")
    await load_kernels(lambda: 1_000)
    assert jit.is_compiled()
    ones = np.ones(1)
    assert checks.sane(np.ones((1, 1)), ones, ones, ones)


async def test_a_small_server_keeps_interpreted_kernels() -> None:
    loading = asyncio.create_task(load_kernels(lambda: 10))
    await asyncio.sleep(0)
    assert not loading.done()
    loading.cancel()
    await asyncio.wait([loading])
    assert not jit.is_compiled()


async def test_a_failed_compilation_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LEVADA_KERNEL_CACHE", str(tmp_path / "file"))
    # Simulates a compiler that runs out of memory or is killed.
    monkeypatch.setattr("levada.server.kernel_loader._FILL_CACHE", "raise SystemExit('no memory')")
    with caplog.at_level(logging.WARNING):
        await load_kernels(lambda: 1_000)
    assert not jit.is_compiled()
    (record,) = caplog.records
    assert "no memory" in record.getMessage()
    assert "LEVADA_KERNEL_CACHE" in record.getMessage()
