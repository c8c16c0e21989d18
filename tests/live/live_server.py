"""A live server in this process, started and stopped by tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Connection, select, update

from levada.core.events import Tick
from levada.live.live import Live
from levada.live.service import Service
from levada.live.store import LeaseLost, Store, tables
from tests.live.fake_backend import FakeBackend, FakeMachines
from tests.timeouts import WAIT_S


def document(name: str = "toy", **spec: Any) -> dict[str, Any]:
    """A job document."""
    return {
        "apiVersion": "levada.dev/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"run": {"command": ["true"]}, **spec},
    }


class ManualClock:
    """A clock that a test advances."""

    def __init__(self, time: float = 0.0) -> None:
        self.time = time

    def now(self) -> float:
        return self.time


class LiveServer:
    """A running server and its backend."""

    def __init__(self, live: Live, backend: FakeBackend) -> None:
        self.live, self.backend = live, backend
        self.service = Service(live)
        self.killed = False
        self.task = asyncio.create_task(live.run())

    async def until(self, true: Callable[[], object]) -> None:
        """Wait until *condition* holds."""
        async with asyncio.timeout(WAIT_S):
            while not true():
                if self.task.done():
                    self.task.result()
                await asyncio.sleep(0.002)

    async def settle(self) -> None:
        """Wait until all observations are stored."""
        await self.live.loop.apply(Tick(at=0.0))

    def phase(self, job: str) -> str:
        return str(self.service.jobs.get(job)["phase"])

    async def kill(self) -> None:
        """Kill the server at its current point."""
        self.killed = True
        self.task.cancel()
        await asyncio.wait([self.task])
        # This process goes on, so the lease is released by hand.
        with contextlib.suppress(LeaseLost):
            await self.live.store.release(self.live.loop.lease)
        await self.live.store.close()


@asynccontextmanager
async def live_server(url: str, machines: FakeMachines | None = None, **fields: Any) -> AsyncIterator[LiveServer]:
    """A server on the store at *url*; stopped gracefully at the end unless killed."""
    answers = fields.pop("answers", True)
    backend = FakeBackend(machines or FakeMachines(), answers=answers)
    live = Live(await Store.open(url), backend, machine=fields.pop("machine", None))
    try:
        await live.open(**{"options": {"rate_limit_s": 0.0}, **fields})
    except BaseException:
        await live.store.close()
        raise
    up = LiveServer(live, backend)
    try:
        yield up
    finally:
        if not up.killed:
            live.stop()
            try:
                await asyncio.wait_for(up.task, WAIT_S)
            finally:
                await live.close()


async def damage_snapshots(url: str) -> None:
    """Make all snapshots unreadable."""
    store = await Store.open(url)

    def damage(connection: Connection) -> None:
        rows = connection.execute(select(tables.snapshots)).all()
        assert rows
        for row in rows:
            worse = row.body[:-10] + b"0123456789"
            connection.execute(
                update(tables.snapshots).where(tables.snapshots.c.sequence == row.sequence).values(body=worse)
            )

    await store.database.write(damage)
    await store.close()
