"""Retention of ended jobs and deadlines in a live server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from levada.backends.local.backend import LocalBackend
from levada.backends.local.gpus import pretend_nodes
from levada.live import live
from levada.live.live import Live
from levada.live.service import Service
from levada.live.store import Store
from tests.engine.engine_state import state_of
from tests.live.live_server import document, live_server
from tests.timeouts import WAIT_S


@asynccontextmanager
async def server(home: Path) -> AsyncIterator[Service]:
    """A live server with real processes."""
    up = Live(await Store.open(f"sqlite:///{home}/levada.db"), LocalBackend(home, pretend_nodes([{"gpu": 1}])))
    await up.open()
    work = asyncio.create_task(up.run())
    try:
        yield Service(up)
    finally:
        up.stop()
        await work
        await up.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait until *condition* holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


def listed(service: Service) -> list[str]:
    """The ids of all jobs in lists."""
    views, _ = service.jobs.page(phases=None, user=None, queue=None, labels={}, after=None, limit=10)
    return [view["id"] for view in views]


async def test_an_expired_job_is_removed_with_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_CLEANUP_S", 0.05)

    async with server(tmp_path) as service:
        short, long = [
            view["id"]
            for view in await service.submissions.submit(
                [document("short", ttl="300ms"), document("long", ttl="1h")], user="ann", key=None
            )
        ]
        await until(lambda: short not in listed(service))
        await until(lambda: service.jobs.get(long)["phase"] == "Succeeded")
        await until(lambda: not (tmp_path / "jobs" / short).exists())
        assert listed(service) == [long]
        assert (tmp_path / "jobs" / long).exists()
        # Its usage stays in the history.
        (row,) = await service.history.usage(["user"], 0.0)
        assert row["jobs"] == 2


async def test_a_job_that_expires_during_downtime_leaves_no_folder(tmp_path: Path) -> None:
    async with server(tmp_path) as service:
        (view,) = await service.submissions.submit([document("short", ttl="100ms")], user="ann", key=None)
        await until(lambda: service.jobs.get(view["id"])["phase"] == "Succeeded")
    await asyncio.sleep(0.2)
    async with server(tmp_path) as service:
        assert listed(service) == []
        await until(lambda: not (tmp_path / "jobs" / view["id"]).exists())


async def test_a_deadline_reaches_the_policy_and_survives_a_kill(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/levada.db"

    async with live_server(url) as up:
        documents = [document("soon", deadline="2h"), document("then", deadline="2100-01-01T00:00:00Z")]
        soon, then = await up.service.submissions.submit(documents, user="ann", key=None)
        submitted = up.live.loop.records.by_id[soon["id"]].submitted
        await up.settle()
        await up.kill()
    async with live_server(url) as up:
        world = state_of(up.live.loop.engine).world
        deadline = {job["workload"]: world.table.deadline[world.slot(job["id"])] for job in (soon, then)}
        assert deadline == {"soon": pytest.approx(submitted + 7200.0), "then": 4102444800.0}
