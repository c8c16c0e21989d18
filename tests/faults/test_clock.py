"""The machine's clock is set back while the server is down: engine time never decreases."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from levada.backends.clock import MachineClock
from levada.live.store import Store
from tests.live.fake_backend import FakeMachines
from tests.live.live_server import document, live_server

_SHIFT_S = 86_400.0


def test_the_clock_starts_where_the_log_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - _SHIFT_S)
    before = real()
    assert MachineClock(before).now() >= before
    # A change during the run has no effect.
    clock = MachineClock()
    first = clock.now()
    monkeypatch.setattr(time, "time", lambda: real() + _SHIFT_S)
    assert first <= clock.now() < first + 60


async def test_a_clock_set_back_does_not_move_engine_time_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, machines = f"sqlite:///{tmp_path}/levada.db", FakeMachines()
    real = time.time

    async def first() -> tuple[str, float]:
        async with live_server(url, machines) as up:
            (view,) = await up.service.submissions.submit([document("before")], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Running")
            await up.settle()
            now = up.live.loop.engine.query.now
            await up.kill()
            return view["id"], now

    async def second(before: str, then: float) -> None:
        async with live_server(url, machines) as up:
            assert up.live.loop.clock.now() >= then
            assert up.live.loop.engine.query.now >= then
            (view,) = await up.service.submissions.submit([document("after")], user="ann", key=None)
            await up.until(lambda: up.phase(view["id"]) == "Running")
            for job in (before, view["id"]):
                up.backend.finish(job)
                await up.until(lambda: up.phase(job) == "Succeeded")  # noqa: B023
            for job in (before, view["id"]):
                ended = up.service.jobs.get(job)
                moments = [datetime.fromisoformat(ended[name]) for name in ("submitted", "started", "finished")]
                assert moments == sorted(moments)
                assert 0 <= ended["running_s"] < 60
                assert 0 <= ended["waiting_s"] < 60
            assert up.service.jobs.get(view["id"])["submitted"] >= up.service.jobs.get(before)["submitted"]

    async def times() -> list[float]:
        store = await Store.open(url)
        try:
            return [at async for _, at, _ in store.entries(0)]
        finally:
            await store.close()

    before, then = await first()
    monkeypatch.setattr(time, "time", lambda: real() - _SHIFT_S)
    await second(before, then)
    logged = await times()
    assert logged == sorted(logged)
