"""Somebody sets the machine's clock back while the server is down: the engine's time goes on all the same."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from pathlib import Path

import pytest

from levada.backends.clock import MachineClock
from levada.live.store import Store
from tests.live.house import document, house
from tests.live.rehearsal import Stage

_BACK_S = 86_400.0


def test_the_clock_begins_where_the_log_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - _BACK_S)
    before = real()
    assert MachineClock(before).now() >= before
    # Set while it runs, it changes nothing.
    clock = MachineClock()
    first = clock.now()
    monkeypatch.setattr(time, "time", lambda: real() + _BACK_S)
    assert first <= clock.now() < first + 60


def test_a_clock_that_was_set_back_turns_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, stage = f"sqlite:///{tmp_path}/levada.db", Stage()
    real = time.time

    async def first() -> tuple[str, float]:
        async with house(url, stage) as up:
            (view,) = await up.service.submit([document("before")], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Running")
            await up.settle()
            now = up.live.loop.engine.query.now
            await up.kill()
            return view["id"], now

    async def second(before: str, then: float) -> None:
        async with house(url, stage) as up:
            assert up.live.loop.clock.now() >= then
            assert up.live.loop.engine.query.now >= then
            (view,) = await up.service.submit([document("after")], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Running")
            for job in (before, view["id"]):
                up.backend.finish(job)
                await up.until(lambda: up.phase(job) == "Succeeded")  # noqa: B023
            for job in (before, view["id"]):
                ended = up.service.job(job)
                moments = [datetime.fromisoformat(ended[name]) for name in ("submitted", "started", "finished")]
                assert moments == sorted(moments)
                assert 0 <= ended["running_s"] < 60
                assert 0 <= ended["waiting_s"] < 60
            assert up.service.job(view["id"])["submitted"] >= up.service.job(before)["submitted"]

    async def times() -> list[float]:
        store = await Store.open(url)
        try:
            return [at async for _, at, _ in store.entries(0)]
        finally:
            await store.close()

    before, then = asyncio.run(first())
    monkeypatch.setattr(time, "time", lambda: real() - _BACK_S)
    asyncio.run(second(before, then))
    logged = asyncio.run(times())
    assert logged == sorted(logged)
