"""A live server in this process, brought up and down by tests."""

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
from tests.live.rehearsal import Rehearsal, Stage
from tests.patience import WAIT_S


def document(name: str = "toy", **spec: Any) -> dict[str, Any]:
    """A job as a user sends it."""
    return {
        "apiVersion": "levada.dev/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"run": {"command": ["true"]}, **spec},
    }


class House:
    """A running server and its backend."""

    def __init__(self, live: Live, backend: Rehearsal) -> None:
        self.live, self.backend = live, backend
        self.service = Service(live)
        self.killed = False
        self.task = asyncio.create_task(live.run())

    async def until(self, true: Callable[[], object]) -> None:
        """Waits for something that the server does."""
        async with asyncio.timeout(WAIT_S):
            while not true():
                if self.task.done():
                    self.task.result()
                await asyncio.sleep(0.002)

    async def settle(self) -> None:
        """Returns when all that has been seen is written down, too."""
        await self.live.loop.tell(Tick(at=0.0))

    def phase(self, job: str) -> str:
        return str(self.service.job(job)["phase"])

    async def kill(self) -> None:
        """The server is gone in the middle of whatever it did."""
        self.killed = True
        self.task.cancel()
        await asyncio.wait([self.task])
        # Its process has not ended, which would free the lease.
        with contextlib.suppress(LeaseLost):
            await self.live.store.release(self.live.loop.lease)
        await self.live.store.close()


@asynccontextmanager
async def house(url: str, stage: Stage | None = None, **fields: Any) -> AsyncIterator[House]:
    """A server on the store at *url*; ends gracefully unless it was killed."""
    answers = fields.pop("answers", True)
    backend = Rehearsal(stage or Stage(), answers=answers)
    live = Live(await Store.open(url), backend, machine=fields.pop("machine", None))
    try:
        await live.open(**{"options": {"rate_limit_s": 0.0}, **fields})
    except BaseException:
        await live.store.close()
        raise
    up = House(live, backend)
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
    """None of them can be read any more."""
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
