"""How far a job is: one answer, whoever is asked and whenever; its rate leaves out what a start takes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from levada.core import events as ev
from tests.live.house import House, document, house
from tests.live.rehearsal import Stage


class Stepping:
    """The clock of a server whose time only passes when the test says so."""

    def __init__(self, begin: float) -> None:
        self.time = begin

    def now(self) -> float:
        return self.time


async def running(up: House, **spec: Any) -> tuple[str, Stepping]:
    """A job that runs, and the clock of the server."""
    (view,) = await up.service.submit([document(**spec)], user="ann", key=None)
    await up.until(lambda: up.phase(view["id"]) == "Running")
    clock = up.live.loop.clock = Stepping(up.live.loop.clock.now())
    return view["id"], clock


def report(up: House, job: str, steps: float) -> None:
    number = up.live.loop.records.by_id[job].number
    up.backend.report(ev.Progress(at=0.0, number=np.array([number]), steps=np.array([steps])))


def progress(up: House, job: str) -> tuple[float | None, float | None]:
    told = up.service.job(job)["progress"]
    return told["step"], told["rate"]


def test_a_job_has_no_step_until_it_tells_one_and_no_rate_until_it_tells_a_second(tmp_path: Path) -> None:
    async def story() -> None:
        async with house(f"sqlite:///{tmp_path}/levada.db") as up:
            job, clock = await running(up)
            assert progress(up, job) == (None, None)
            clock.time += 30.0
            report(up, job, 0.0)
            await up.until(lambda: progress(up, job) == (0, None))
            clock.time += 10.0
            report(up, job, 40.0)
            await up.until(lambda: progress(up, job) == (40, 4.0))
            clock.time += 10.0
            report(up, job, 10.0)  # it began again from its checkpoint
            await up.until(lambda: progress(up, job) == (10, None))

    asyncio.run(story())


@pytest.mark.parametrize("graceful", [True, False])
def test_the_step_is_still_known_after_a_restart_and_at_the_end(tmp_path: Path, graceful: bool) -> None:
    async def story() -> None:
        url, stage = f"sqlite:///{tmp_path}/levada.db", Stage()
        async with house(url, stage) as up:
            job, clock = await running(up)
            clock.time += 30.0
            report(up, job, 40.0)
            await up.until(lambda: progress(up, job)[0] == 40)
            await up.live.loop.save_snapshot()
            if not graceful:
                await up.kill()
        async with house(url, stage) as up:
            assert progress(up, job)[0] == 40
            # Told in the same turn as its end, the last step counts.
            report(up, job, 55.0)
            up.backend.finish(job)
            await up.until(lambda: up.phase(job) == "Succeeded")
            assert progress(up, job) == (55, None)

    asyncio.run(story())
