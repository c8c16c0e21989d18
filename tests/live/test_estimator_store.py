"""Learned speeds: visible at once, stored across kills, reported to policies."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from levada.core import events as ev
from levada.engine import learned
from tests.engine.engine_state import state_of
from tests.live.fake_backend import FakeMachines
from tests.live.live_server import LiveServer, ManualClock, damage_snapshots, document, live_server


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/levada.db"


async def train(up: LiveServer, job: str, rate: float, seconds: int) -> None:
    """Let a running job make *rate* steps per second for *seconds*, with a report per second."""
    clock = ManualClock(up.live.loop.clock.now())
    up.live.loop.clock = up.live.loop.executor.clock = clock
    done = up.service.jobs.get(job)["progress"]["step"] or 0.0
    number = up.live.loop.records.by_id[job].number
    for _ in range(seconds):
        clock.time += 1.0
        done += rate
        up.backend.report(ev.Progress(at=0.0, number=np.array([number]), steps=np.array([done])))
        await up.until(lambda done=done: up.service.jobs.get(job)["progress"]["step"] == pytest.approx(done))


def point(curve: dict[str, Any], gpu_type: str, workers: int) -> dict[str, Any]:
    """One line of a curve."""
    return next(p for p in curve["points"] if (p["gpu_type"], p["workers"]) == (gpu_type, workers))


async def test_a_speed_curve_shows_measured_and_estimated_values(url: str) -> None:
    async with live_server(url) as up:
        (view,) = await up.service.submissions.submit(
            [document("resnet", workers={"min": 1, "max": 4})], user="a", key=None
        )
        job = view["id"]
        await up.until(lambda: up.phase(job) == "Running")
        assert up.service.jobs.curve(job)["points"] == []
        await train(up, job, 30.0, 60)
        curve = up.service.jobs.curve(job)
        assert (curve["workload"], curve["now"]) == ("resnet", {"gpu_type": "v100", "workers": 4})
        four, two = point(curve, "v100", 4), point(curve, "v100", 2)
        assert (four["measured"], four["fitted"], four["measured_speedup"]) == pytest.approx(
            (30.0, 30.0, 4.0), rel=0.001
        )
        assert (two["measured"], two["fitted"], two["speedup"]) == (None, pytest.approx(15.0, rel=0.001), 2.0)
        assert four["confidence"] > two["confidence"] > point(curve, "k80", 4)["confidence"] > 0
        assert curve["costs"] == []
        # The speed is known for a new job of the workload, and still for an ended one.
        (again,) = await up.service.submissions.submit([document("resnet", workers=2)], user="b", key=None)
        assert point(up.service.jobs.curve(again["id"]), "v100", 4)["measured"] == pytest.approx(30.0, rel=0.001)
        up.backend.finish(job)
        await up.until(lambda: up.phase(job) == "Succeeded")
        assert point(up.service.jobs.curve(job), "v100", 4)["measured"] == pytest.approx(30.0, rel=0.001)
        assert up.service.jobs.curve(job)["now"] is None


async def test_a_forecast_needs_reported_progress(url: str) -> None:
    async with live_server(url, FakeMachines({"n0": {"v100": 1}})) as up:
        (one,) = await up.service.submissions.submit([document("known", steps=1000)], user="ann", key=None)
        (two,) = await up.service.submissions.submit([document("known", steps=1000)], user="ann", key=None)
        await up.until(lambda: up.phase(one["id"]) == "Running" and up.service.jobs.get(two["id"])["position"] == 1)
        # Without reports there is no speed and no forecast.
        runs, waits = [await up.service.jobs.explain(job["id"]) for job in (one, two)]
        assert (runs["ends_in_s"], waits["starts_in_s"], waits["ends_in_s"]) == (None, None, None)
        assert up.service.jobs.get(one["id"])["eta_s"] is None
        would = await up.service.submissions.whatif([document("known", steps=1000)], user="ann", policy=None)
        assert (would["jobs"][0]["starts_in_s"], would["jobs"][0]["ends_in_s"]) == (None, None)
        await train(up, one["id"], 2.0, 20)
        waits = await up.service.jobs.explain(two["id"])
        assert waits["reason"]["code"] in ("capacity", "new")
        assert waits["starts_in_s"] == pytest.approx(960 / 2, rel=0.1)
        assert waits["ends_in_s"] == pytest.approx(1960 / 2, rel=0.1)
        # A job without measured speed has a start but no end.
        asked = [document("known", steps=1000), document("unheard-of", steps=1000)]
        would = await up.service.submissions.whatif(asked, user="ann", policy=None)
        known, unknown = would["jobs"]
        assert known["starts_in_s"] > waits["starts_in_s"]
        assert (unknown["starts_in_s"] > known["starts_in_s"], unknown["ends_in_s"]) == (True, None)


async def test_learned_speeds_survive_a_kill_and_a_damaged_snapshot(url: str) -> None:
    machines = FakeMachines()
    async with live_server(url, machines) as up:
        (view,) = await up.service.submissions.submit(
            [document("resnet", workers={"min": 1, "max": 4})], user="a", key=None
        )
        job = view["id"]
        await up.until(lambda: up.phase(job) == "Running")
        await train(up, job, 30.0, 60)
        seen = machines.runs[job]
        up.backend.report(
            ev.Paused(
                at=0.0,
                number=np.array([seen.number]),
                generation=np.array([seen.generation]),
                seconds=np.array([0.25]),
            )
        )
        await up.settle()
        before = up.service.jobs.curve(job)
        await up.live.learning.save()
        await up.kill()
    async with live_server(url, machines) as up:
        after = up.service.jobs.curve(job)
        assert after == before
        (cost,) = after["costs"]
        assert (cost["change"], cost["times"]) == ("resize", 1)
        assert 0.25 < cost["seconds"] < 10
        # Policies use the same model.
        state = state_of(up.live.loop.engine)
        assert state.perf.rate(seen.number, state.world.inventory.types.find("v100"), 4) == pytest.approx(
            30.0, rel=0.001
        )
    await damage_snapshots(url)
    async with live_server(url, machines) as up:
        assert up.service.jobs.curve(job) == before
        await up.live.store.set_setting("learned", '{"nonsense": 1}')
        await up.kill()
    async with live_server(url, machines) as up:
        assert up.phase(job) == "Running"


async def test_learned_speeds_are_stored_while_the_server_runs(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("levada.live.estimator_store._CHECK_S", 0.02)
    monkeypatch.setattr("levada.live.estimator_store._STORE_S", 0.02)

    machines = FakeMachines()
    async with live_server(sqlite_url, machines) as up:
        (view,) = await up.service.submissions.submit([document("resnet")], user="a", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Running")
        await train(up, view["id"], 7.0, 20)
        async with asyncio.timeout(10):
            while '"resnet"' not in (stored := await up.live.store.setting("learned") or ""):
                await asyncio.sleep(0.01)
        assert '"resnet"' in stored
        await up.kill()


async def test_unknown_names_are_dropped(url: str) -> None:
    async with live_server(url) as up:
        (view,) = await up.service.submissions.submit([document("resnet")], user="a", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Running")
        await train(up, view["id"], 7.0, 20)
        packed = learned.dump(up.live.loop.engine)
        assert packed is not None
        learned.load(up.live.loop.engine, packed.replace(b'"resnet"', b'"gone"'))
        assert up.service.jobs.curve(view["id"])["points"] == []
        learned.load(up.live.loop.engine, packed)
        assert point(up.service.jobs.curve(view["id"]), "v100", 1)["measured"] == pytest.approx(7.0, rel=0.001)


async def test_a_changed_speed_triggers_a_decision(url: str) -> None:
    async with live_server(url, options={"rate_limit_s": 0.0}) as up:
        (view,) = await up.service.submissions.submit([document("resnet", workers=2)], user="a", key=None)
        await up.until(lambda: up.phase(view["id"]) == "Running")
        await train(up, view["id"], 10.0, 60)
        loop = up.live.loop

        async def look() -> int:
            await up.until(lambda: state_of(loop.engine).deciding is None)
            before = loop.decisions
            up.live.learning.check()
            await up.settle()
            return loop.decisions - before

        assert await look() == 1
        assert await look() == 0, "nothing has changed since"
        await train(up, view["id"], 10.1, 60)
        assert await look() == 0, "that is no other speed"
        await train(up, view["id"], 5.0, 120)
        assert await look() == 1


async def test_learned_speeds_determine_allocations_also_after_a_kill(url: str) -> None:
    machines = FakeMachines({"n0": {"v100": 4}})
    async with live_server(url, machines, policy="ffdl") as up:
        for name, size, rate in (("flat", 1, 10.0), ("flat", 3, 10.5), ("scales", 1, 10.0), ("scales", 3, 29.0)):
            (view,) = await up.service.submissions.submit([document(name, workers=size)], user="a", key=None)
            await up.until(lambda job=view["id"]: up.phase(job) == "Running")
            await train(up, view["id"], rate, 40)
            up.backend.finish(view["id"])
            await up.until(lambda job=view["id"]: up.phase(job) == "Succeeded")
        await up.live.learning.save()
        await up.kill()
    async with live_server(url, machines) as up:
        # The job that does not scale is first, and would get most without learned speeds.
        both = [document(name, workers={"min": 1, "max": 3}) for name in ("flat", "scales")]
        ids = [view["id"] for view in await up.service.submissions.submit(both, user="a", key=None)]
        await up.until(lambda: all(up.phase(job) == "Running" for job in ids))
        assert [up.service.jobs.get(job)["gpus"] for job in ids] == [1, 3]
