"""A job that ends while a restarted server opens, with real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from levada.backends.local.backend import LocalBackend
from levada.backends.local.job_state import Stage
from levada.core.cluster import Node
from levada.live.live import Live
from levada.live.service import Service
from levada.live.store import Store
from tests.live.live_server import document
from tests.timeouts import WAIT_S


async def _until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


class SlowStore(Store):
    """A backend that delays one call until an event has happened."""

    meanwhile: Callable[[], Any]

    async def keys_and_setting(self, name: str) -> tuple[set[tuple[str, str]], str | None]:
        await self.meanwhile()
        return await super().keys_and_setting(name)


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (3, "Failed")])
async def test_a_job_that_ends_while_the_server_opens_is_finished(tmp_path: Path, code: int, phase: str) -> None:
    url, starts, go = f"sqlite:///{tmp_path}/levada.db", tmp_path / "starts", tmp_path / "go"
    script = f"echo $$ >> {starts}; until test -e {go}; do sleep 0.01; done; exit {code}"

    def backend() -> LocalBackend:
        return LocalBackend(tmp_path / "home", [Node.of("n0", {"v100": 1})])

    async def first() -> str:
        live = Live(await Store.open(url), backend())
        await live.open(options={"rate_limit_s": 0.0})
        task, service = asyncio.create_task(live.run()), Service(live)
        (view,) = await service.submissions.submit(
            [document(run={"command": ["sh", "-c", script]})], user="ann", key=None
        )
        job = str(view["id"])
        await _until(lambda: service.jobs.get(job)["phase"] == "Running")
        live.stop()
        await task
        await live.close()
        return job

    async def second(job: str) -> None:
        seen = backend()

        async def ends() -> None:
            go.touch()
            await _until(lambda: seen.controllers[job].record.stage is Stage.IDLE)

        store = SlowStore((await Store.open(url)).database)
        store.meanwhile = ends
        live = Live(store, seen)
        await live.open()
        # A pending decision arrives before the loop gets any report.
        await _until(lambda: not live.loop.executor.policy_tasks)
        task, service = asyncio.create_task(live.run()), Service(live)
        await _until(lambda: service.jobs.get(job)["phase"] == phase)
        # All consequences have happened when the next job is finished.
        (view,) = await service.submissions.submit([document("next")], user="ann", key=None)
        await _until(lambda: service.jobs.get(view["id"])["phase"] == "Succeeded")
        assert (service.jobs.get(job)["phase"], service.jobs.get(job)["exit_code"]) == (phase, code)
        assert len(starts.read_text().splitlines()) == 1
        live.stop()
        await task
        await live.close()

    await second(await first())
