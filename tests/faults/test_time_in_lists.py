"""How long a job is kept after its end, and when it should be done: what becomes of both in a live server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from levada.backends.local.backend import LocalBackend
from levada.backends.local.devices import pretend_nodes
from levada.live import live
from levada.live.live import Live
from levada.live.service import Service
from levada.live.store import Store
from tests.engine.inspect import state_of
from tests.live.house import document, house
from tests.patience import WAIT_S


@asynccontextmanager
async def server(home: Path) -> AsyncIterator[Service]:
    """A live server with the processes of this machine."""
    up = Live(await Store.open(f"sqlite:///{home}/levada.db"), LocalBackend(home, pretend_nodes([{"gpu": 1}])))
    await up.open()
    work = asyncio.create_task(up.run())
    try:
        yield Service(up)
    finally:
        up.stop()
        await work
        await up.close()


async def until(true: Callable[[], object]) -> None:
    """Waits for something."""
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.01)


def listed(service: Service) -> list[str]:
    """The ids of all jobs in lists."""
    found, _ = service.jobs(phases=None, user=None, queue=None, labels={}, after=None, limit=10)
    return [view["id"] for view in found]


def test_a_job_goes_with_its_folder_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_TIDY_S", 0.05)

    async def story() -> None:
        async with server(tmp_path) as service:
            short, long = [
                view["id"]
                for view in await service.submit(
                    [document("short", ttl="300ms"), document("long", ttl="1h")], user="ann", key=None
                )
            ]
            await until(lambda: short not in listed(service))
            await until(lambda: service.job(long)["phase"] == "Succeeded")
            await until(lambda: not (tmp_path / "jobs" / short).exists())
            assert listed(service) == [long]
            assert (tmp_path / "jobs" / long).exists()
            # What it used is not forgotten.
            (row,) = await service.usage(["user"], 0.0)
            assert row["jobs"] == 2

    asyncio.run(story())


def test_a_job_whose_time_ends_while_no_server_is_up_leaves_no_folder(tmp_path: Path) -> None:
    async def first() -> str:
        async with server(tmp_path) as service:
            (view,) = await service.submit([document("short", ttl="100ms")], user="ann", key=None)
            await until(lambda: service.job(view["id"])["phase"] == "Succeeded")
            return str(view["id"])

    async def second(job: str) -> None:
        await asyncio.sleep(0.2)
        async with server(tmp_path) as service:
            assert listed(service) == []
            await until(lambda: not (tmp_path / "jobs" / job).exists())

    asyncio.run(second(asyncio.run(first())))


def test_a_deadline_is_known_to_the_policy_and_outlives_a_kill(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/levada.db"

    async def story() -> None:
        async with house(url) as up:
            documents = [document("soon", deadline="2h"), document("then", deadline="2100-01-01T00:00:00Z")]
            soon, then = await up.service.submit(documents, user="ann", key=None)
            submitted = up.live.loop.records.by_id[soon["id"]].submitted
            await up.settle()
            await up.kill()
        async with house(url) as up:
            world = state_of(up.live.loop.engine).world
            deadline = {job["workload"]: world.table.deadline[world.slot(job["id"])] for job in (soon, then)}
            assert deadline == {"soon": pytest.approx(submitted + 7200.0), "then": 4102444800.0}

    asyncio.run(story())
