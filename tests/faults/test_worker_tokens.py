"""The token of a worker on a disconnected machine: valid until the machine is lost, never afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from levada.errors import Refused
from levada.live.live import Live
from levada.live.service import Service
from levada.live.store import AuditEntry, Store
from tests.backends.local.test_agents import AgentsTest, CuttableProxy, serve_agents
from tests.timeouts import WAIT_S


class TokenHolder(NamedTuple):
    """The job and worker that a token belongs to."""

    job: str
    number: int
    name: str


class TestWorkerTokens(AgentsTest):
    """One machine, connected through a proxy."""

    silence_s = 1.5

    @asynccontextmanager
    async def live(self) -> AsyncIterator[tuple[Service, CuttableProxy]]:
        """A server without GPUs, and one machine that has joined."""
        async with CuttableProxy(self.port) as proxy:
            self.through = {"node-1": proxy.port}
            backend = self.make()
            live = Live(await Store.open(f"sqlite:///{self.work / 'levada.db'}"), backend)
            await live.open(policy="elastic-fifo", options={"rate_limit_s": 0.0})
            work = asyncio.create_task(live.run())
            try:
                async with serve_agents(backend, "127.0.0.1", self.port):
                    self.join("node-1")
                    yield Service(live), proxy
                    await backend.stop_all()
            finally:
                live.stop()
                await work
                await live.close()
                self.agents["node-1"].cancel()
                await asyncio.gather(self.agents["node-1"], return_exceptions=True)

    async def test_a_worker_token_is_valid_until_its_machine_is_lost(self) -> None:
        document = {
            "apiVersion": "levada.dev/v1",
            "kind": "Job",
            "metadata": {"name": "toy"},
            "spec": {"workers": 1, "retries": 0, "run": {"command": ["sleep", "600"], "workdir": "/"}},
        }

        async with self.live() as (service, proxy), asyncio.timeout(WAIT_S):
            audit_entry = AuditEntry(user="ada", role="user", method="POST", path="/api/v1/jobs")
            [job] = await service.submissions.submit([document], user="ada", key=None, audit_entry=audit_entry)
            name = job["id"]

            async def wait_phase(expected: str) -> None:
                while service.jobs.get(name)["phase"] != expected:
                    await asyncio.sleep(0.01)

            def is_valid(worker: TokenHolder) -> bool:
                try:
                    return service.workers.job(worker)["id"] == name
                except Refused:
                    return False

            await wait_phase("Running")
            [worker] = service.loop.backend.workers(name)
            first = TokenHolder(name, service.loop.records.find(name).number, worker.name)
            assert is_valid(first)
            proxy.cut()
            await asyncio.sleep(0.5)
            assert is_valid(first), "the machine may return in time"
            proxy.mend()
            await asyncio.sleep(self.silence_s + 0.5)
            assert is_valid(first), "the machine returned"
            proxy.cut()
            await wait_phase("Pending")
            assert not is_valid(first)
            proxy.mend()
            while service.jobs.get(name)["phase"] != "Running":
                assert not is_valid(first), "the machine is back, but the job has no worker there"
                await asyncio.sleep(0)
            [worker] = service.loop.backend.workers(name)
            assert is_valid(first._replace(name=worker.name))
            assert not is_valid(first)
            assert service.jobs.get(name)["restarts"] == 1
            await service.jobs.cancel(name)
            await wait_phase("Cancelled")
