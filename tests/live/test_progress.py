"""Progress and rate of a job are consistent in all views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from levada.core import events as ev
from tests.live.fake_backend import FakeMachines
from tests.live.live_server import LiveServer, ManualClock, document, live_server


async def running(up: LiveServer, **spec: Any) -> tuple[str, ManualClock]:
    """A running job, and the clock of the server."""
    (view,) = await up.service.submissions.submit([document(**spec)], user="ann", key=None)
    await up.until(lambda: up.phase(view["id"]) == "Running")
    clock = up.live.loop.clock = up.live.loop.executor.clock = ManualClock(up.live.loop.clock.now())
    return view["id"], clock


def report(up: LiveServer, job: str, steps: float) -> None:
    number = up.live.loop.records.by_id[job].number
    up.backend.report(ev.Progress(at=0.0, number=np.array([number]), steps=np.array([steps])))


def progress(up: LiveServer, job: str) -> tuple[float | None, float | None]:
    shown = up.service.jobs.get(job)["progress"]
    return shown["step"], shown["rate"]


async def test_step_needs_one_progress_report_and_rate_needs_two(tmp_path: Path) -> None:
    async with live_server(f"sqlite:///{tmp_path}/levada.db") as up:
        job, clock = await running(up)
        assert progress(up, job) == (None, None)
        clock.time += 30.0
        report(up, job, 0.0)
        await up.until(lambda: progress(up, job) == (0, None))
        clock.time += 10.0
        report(up, job, 40.0)
        await up.until(lambda: progress(up, job) == (40, 4.0))
        clock.time += 10.0
        report(up, job, 10.0)  # restarted from its checkpoint
        await up.until(lambda: progress(up, job) == (10, None))


@pytest.mark.parametrize("graceful", [True, False])
async def test_the_step_survives_a_restart_and_the_job_end(tmp_path: Path, graceful: bool) -> None:
    url, machines = f"sqlite:///{tmp_path}/levada.db", FakeMachines()
    async with live_server(url, machines) as up:
        job, clock = await running(up)
        clock.time += 30.0
        report(up, job, 40.0)
        await up.until(lambda: progress(up, job)[0] == 40)
        await up.live.loop.save_snapshot()
        if not graceful:
            await up.kill()
    async with live_server(url, machines) as up:
        assert progress(up, job)[0] == 40
        # The last step counts, even if it is reported in the same turn as the end.
        report(up, job, 55.0)
        up.backend.finish(job)
        await up.until(lambda: up.phase(job) == "Succeeded")
        assert progress(up, job) == (55, None)
