"""Warnings for jobs without progress and idle GPUs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from levada.core import events as ev
from levada.live.live import Live
from levada.live.store import Store
from levada.live.warnings import IdleJobDetector, RunningJob, StuckJobDetector, WarningOptions
from tests.live.fake_backend import FakeBackend, FakeMachines
from tests.live.live_server import LiveServer, document
from tests.timeouts import WAIT_S


def test_a_job_without_steps_is_warned_about_once_until_it_progresses() -> None:
    still = StuckJobDetector(600.0)

    def look(now: float, steps: float, since: float = 0.0) -> list[str]:
        return [note.job for note in still.check([RunningJob("j", since, steps)], now)]

    assert look(0, 10) == look(300, 20) == look(600, 20) == look(899, 20) == []
    assert look(900, 20) == ["j"]
    assert look(2000, 20) == look(9000, 20) == [], "once"
    assert look(9001, 21) == look(9600, 21) == []
    assert look(9601, 21) == ["j"]
    # A return to a checkpoint counts as a change.
    assert look(9700, 5) == look(10299, 5) == []
    assert look(10300, 5) == ["j"]


def test_a_job_without_progress_reports_or_just_resized_is_not_warned_about() -> None:
    still = StuckJobDetector(600.0)
    for now in range(0, 5000, 100):
        assert not still.check([RunningJob("silent", 0.0, 0.0), RunningJob("resized", now - 500.0, 7.0)], now)


def test_an_interruption_restarts_the_stuck_timer() -> None:
    still = StuckJobDetector(600.0)
    assert not still.check([RunningJob("j", 0.0, 7.0)], 0.0)
    assert not still.check([], 300.0)
    assert not still.check([RunningJob("j", 400.0, 7.0)], 999.0)
    (note,) = still.check([RunningJob("j", 400.0, 7.0)], 1599.0)
    assert (note.type, note.data) == ("warning", {"warning": "stuck", "step": 7.0})
    assert "No step for 10 minutes, at step 7" in note.text
    assert "levada logs j" in note.text


def test_a_job_with_idle_gpus_is_warned_about_once_until_one_is_busy() -> None:
    idle = IdleJobDetector(600.0)
    jobs = [
        RunningJob("busy", 0.0, 1.0, ("a", "b")),
        RunningJob("idle", 0.0, 1.0, ("c", "d")),
        RunningJob("cpu", 0.0, 1.0),
    ]

    def look(now: float, **use: float) -> list[str]:
        return [note.job for note in idle.check(jobs, {"a": 0.0, "b": 90.0, "c": 4.9, "d": 0.0, **use}, now)]

    assert look(0) == look(599) == []
    assert look(600) == ["idle"]
    assert look(900) == []
    assert look(1000, d=5.0) == look(1100) == look(1699) == []
    assert look(1700) == ["idle"]
    (note,) = IdleJobDetector(0.0).check([jobs[1]], {"c": 0.0, "d": 1.0}, 5.0)
    assert note.data == {"warning": "idle"}
    assert note.text.startswith("All of its 2 GPUs have been idle (below 5 % utilization) for 0 seconds.")


def test_a_job_with_a_gpu_of_unknown_use_is_not_idle() -> None:
    idle = IdleJobDetector(10.0)
    for now in (0.0, 100.0, 200.0):
        assert not idle.check([RunningJob("j", 0.0, 1.0, ("here", "elsewhere"))], {"here": 0.0}, now)


_DEFAULT = WarningOptions()


@asynccontextmanager
async def watched(folder: Path, warn: WarningOptions = _DEFAULT) -> AsyncIterator[LiveServer]:
    """A server that checks its jobs every few milliseconds."""
    live = Live(await Store.open(f"sqlite:///{folder}/levada.db"), FakeBackend(FakeMachines()), warn=warn)
    await live.open()
    up = LiveServer(live, live.backend)  # type: ignore[arg-type]
    try:
        yield up
    finally:
        live.stop()
        try:
            await asyncio.wait_for(up.task, WAIT_S)
        finally:
            await live.close()


async def warnings(up: LiveServer) -> list[dict[str, Any]]:
    return [
        line for line in await up.service.history.events(job=None, after=0, limit=1000) if line["type"] == "warning"
    ]


@pytest.mark.parametrize("after_s", [0.2, 0.0])
async def test_a_live_server_warns_in_the_history_of_the_job(tmp_path: Path, after_s: float) -> None:
    async with watched(tmp_path, WarningOptions(after_s, lambda: {"0": 1.0, "1": 80.0})) as up:
        documents = [document(name, gpuTypes=["v100"]) for name in ("stuck", "works")]
        views = await up.service.submissions.submit(documents, user="ann", key=None)
        ids = [view["id"] for view in views]
        await up.until(lambda: all(up.phase(job) == "Running" for job in ids))
        numbers = np.array([up.live.loop.records.by_id[job].number for job in ids])
        loop = asyncio.get_running_loop()
        steps, begin = 1.0, loop.time()
        lines: list[dict[str, Any]] = []
        while len(lines) < 2 and loop.time() < begin + (WAIT_S if after_s else 0.5):
            steps += 1.0
            up.backend.report(ev.Progress(at=0.0, number=numbers, steps=np.array([1.0, steps])))
            await asyncio.sleep(0.02)
            lines = await warnings(up)
        if not after_s:
            assert lines == []
            return
        warned = {(line["job"], line["warning"]) for line in lines}
        assert warned == {(ids[0], "stuck"), (ids[0], "idle")}
