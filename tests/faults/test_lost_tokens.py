"""The token of a worker whose machine is cut off: it serves until the machine counts as lost, and never again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from levada.errors import Refused
from levada.live.live import Live
from levada.live.service import Service
from levada.live.store import Deed, Store
from tests.backends.local.test_agents import AgentsTest, Wire, served
from tests.patience import WAIT_S


class Holder(NamedTuple):
    """Who has a token."""

    job: str
    number: int
    name: str


class TestTokens(AgentsTest):
    """One machine at the end of a wire."""

    silence_s = 1.5

    @asynccontextmanager
    async def live(self) -> AsyncIterator[tuple[Service, Wire]]:
        """A server without GPUs of its own, and one machine that has joined it."""
        async with Wire(self.port) as wire:
            self.through = {"node-1": wire.port}
            backend = self.make()
            live = Live(await Store.open(f"sqlite:///{self.here / 'levada.db'}"), backend)
            await live.open(policy="elastic-fifo", options={"rate_limit_s": 0.0})
            work = asyncio.create_task(live.run())
            try:
                async with served(backend, "127.0.0.1", self.port):
                    self.join("node-1")
                    yield Service(live), wire
                    await backend.stop_all()
            finally:
                live.stop()
                await work
                await live.close()
                self.agents["node-1"].cancel()
                await asyncio.gather(self.agents["node-1"], return_exceptions=True)

    def test_it_serves_while_its_machine_is_awaited_and_never_after(self) -> None:
        document = {
            "apiVersion": "levada.dev/v1",
            "kind": "Job",
            "metadata": {"name": "toy"},
            "spec": {"workers": 1, "retries": 0, "run": {"command": ["sleep", "600"], "workdir": "/"}},
        }

        async def story() -> None:
            async with self.live() as (service, wire), asyncio.timeout(WAIT_S):
                deed = Deed(user="ada", role="user", method="POST", path="/api/v1/jobs")
                [job] = await service.submit([document], user="ada", key=None, deed=deed)
                name = job["id"]

                async def phase(wanted: str) -> None:
                    while service.job(name)["phase"] != wanted:
                        await asyncio.sleep(0.01)

                def serves(worker: Holder) -> bool:
                    try:
                        return service.worker_job(worker)["id"] == name
                    except Refused:
                        return False

                await phase("Running")
                [worker] = service.loop.backend.workers(name)
                first = Holder(name, service.loop.records.find(name).number, worker.name)
                assert serves(first)
                wire.cut()
                await asyncio.sleep(0.5)
                assert serves(first), "its machine may come back in time"
                wire.mend()
                await asyncio.sleep(self.silence_s + 0.5)
                assert serves(first), "and has"
                wire.cut()
                await phase("Pending")
                assert not serves(first)
                wire.mend()
                while service.job(name)["phase"] != "Running":
                    assert not serves(first), "its machine is back, and its job has nothing there"
                    await asyncio.sleep(0)
                [worker] = service.loop.backend.workers(name)
                assert serves(first._replace(name=worker.name))
                assert not serves(first)
                assert service.job(name)["restarts"] == 1
                await service.cancel(name)
                await phase("Cancelled")

        self.run(story)
