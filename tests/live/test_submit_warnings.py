"""Warnings at submission: jobs that cannot start or will miss their deadline."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from levada.core import events as ev
from tests.live.fake_backend import FakeMachines
from tests.live.live_server import LiveServer, document, live_server

NODES = {"n0": {"v100": 4}, "n1": {"v100": 2, "k80": 2}}


async def warnings(up: LiveServer, **spec: Any) -> list[str] | None:
    """The warnings of an accepted job."""
    (job,) = await up.service.submissions.submit([document(**spec)], user="ann", key=None)
    assert up.phase(job["id"]) in ("Pending", "Starting", "Running")
    warning_texts: list[str] | None = job.get("warnings")
    return warning_texts


@pytest.mark.parametrize(
    ("spec", "warning"),
    [
        ({}, None),
        ({"gpusPerWorker": 4}, None),
        ({"workers": {"min": 1, "max": 100}}, None),
        ({"gpusPerWorker": 16}, "one worker needs 16 GPUs, the largest node has 4"),
        ({"gpusPerWorker": 3, "gpuTypes": ["k80"]}, "one worker needs 3 GPUs, the largest node has 2 of type k80"),
        ({"workers": 7}, "needs at least 7 workers, the cluster can hold 6 on GPUs of one type"),
        ({"workers": 3, "gpuTypes": ["k80"]}, "needs at least 3 workers, the cluster can hold 2"),
        ({"gpuTypes": ["h100", "b200"]}, "no node has a GPU of type h100 or b200; there are k80, v100"),
        ({"queue": "small", "workers": 3}, "needs at least 3 workers, the limit of queue small allows 2"),
        ({"queue": "fair", "workers": 2}, "needs at least 2 workers, the limit per user of queue fair allows 1"),
    ],
    ids=str,
)
async def test_a_job_that_can_never_start_is_accepted_with_a_warning(
    url: str, spec: dict[str, Any], warning: str | None
) -> None:
    async with live_server(url, FakeMachines(NODES)) as up:
        for name, limits in (("small", {"limit": {"v100": 2, "k80": 2}}), ("fair", {"perUserLimit": 1})):
            queue = {"apiVersion": "levada.dev/v1", "kind": "Queue", "metadata": {"name": name}, "spec": limits}
            await up.service.cluster.put_queue(queue)
        assert await warnings(up, **spec) == (None if warning is None else [f"Can never start: {warning}."])


async def test_the_same_key_gives_the_same_warnings(url: str) -> None:
    async with live_server(url, FakeMachines(NODES)) as up:
        first = await up.service.submissions.submit([document(gpusPerWorker=9)], user="ann", key="k")
        again = await up.service.submissions.submit([document(gpusPerWorker=9)], user="ann", key="k")
        assert first[0]["warnings"] == again[0]["warnings"]
        assert "warnings" not in up.service.jobs.get(first[0]["id"])


async def test_only_a_deadline_missed_by_the_forecast_is_warned_about(url: str) -> None:
    async with live_server(url, FakeMachines({"n0": {"v100": 1}})) as up:
        (one,) = await up.service.submissions.submit([document("train", steps=1_000_000)], user="ann", key=None)
        await up.until(lambda: up.phase(one["id"]) == "Running")
        number = np.array([up.live.loop.records.by_id[one["id"]].number])
        began = time.monotonic()

        def seen_to_be_fast() -> bool:
            """Report a step per millisecond until the speed is learned."""
            done = 1000.0 * (time.monotonic() - began)
            up.backend.report(ev.Progress(at=0.0, number=number, steps=np.array([done])))
            return ((up.service.jobs.get(one["id"])["progress"] or {}).get("rate") or 0.0) > 500

        await up.until(seen_to_be_fast)
        # After the first job, which needs about 1,000 s.
        (late,) = await up.service.submissions.submit(
            [document("train", steps=1000, deadline="20s")], user="ann", key=None
        )
        (text,) = late["warnings"]
        assert text.startswith("Will miss its deadline 2")
        assert "expected to end " in text
        (good,) = await up.service.submissions.submit(
            [document("train", steps=1000, deadline="2d")], user="ann", key=None
        )
        assert "warnings" not in good, good
        (unknown,) = await up.service.submissions.submit([document("new", deadline="2d")], user="ann", key=None)
        assert "warnings" not in unknown


async def test_a_slow_forecast_is_not_started_twice(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr("levada.live.submit_warnings._WAIT_S", 0.02)
    at_work: list[int] = []
    most: list[int] = []
    go = threading.Event()

    def slow(*_: Any, **__: Any) -> dict[int, dict[str, Any]]:
        at_work.append(1)
        most.append(len(at_work))
        go.wait(10.0)
        at_work.pop()
        return {}

    monkeypatch.setattr("levada.live.forecast.forecast", slow)

    async with live_server(url, FakeMachines({"n0": {"v100": 1}})) as up:
        for _ in range(5):
            await up.service.submissions.submit([document(steps=1000, deadline="20s")], user="ann", key=None)
        assert most == [1], "a thread cannot be ended: the next one waits for it"
        go.set()
        await up.until(lambda: not at_work)
        await up.service.submissions.submit([document(steps=1000, deadline="20s")], user="ann", key=None)
        await up.until(lambda: len(most) > 1)
