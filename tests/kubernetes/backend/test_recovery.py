"""Restarts, epochs and outages."""

from __future__ import annotations

import asyncio

import pytest

from levada.backends.kubernetes.client import ApiError
from levada.core import events as ev
from levada.errors import Refused
from tests.kubernetes.backend import jobs
from tests.kubernetes.backend.scene import BackendScene, Watch, resize, start, stop
from tests.kubernetes.backend.virtual_time import run


def scene_of() -> BackendScene:
    scene = BackendScene()
    scene.adopt(jobs.batch_job())
    return scene


def test_next_backend_finds_running_jobs_and_continues_them() -> None:
    scene = scene_of()

    async def story(first: Watch) -> None:
        await first.backend.apply(start(1, "n0", "n1"), scene.launch())
        await first.for_(ev.Running, 1)
        pods, writes = scene.workers(), len(scene.api.writes)
        await first.close()
        second = await scene.open(2)
        seen = second.first.running["train-1"]
        assert (seen.number, seen.generation, seen.running) == (7, 1, 2)
        await second.backend.apply(start(1, "n0", "n1"), scene.launch())
        await second.for_(ev.Running, 1)
        await asyncio.sleep(10)
        assert scene.workers() == pods
        assert len(scene.api.writes) == writes + 1, "only the epoch was written"
        await second.backend.apply(resize(2, "n0"), scene.launch())
        await second.for_(ev.Running, 2)
        await second.close()

    scene.run(story)


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.2, 0.4])
def test_interrupted_start_is_completed_by_the_next_backend(after_s: float) -> None:
    scene = scene_of()

    async def story(first: Watch) -> None:
        await first.backend.apply(start(1, "n0", "n1"), scene.launch())
        await asyncio.sleep(after_s)
        await first.close()
        second = await scene.open(2)
        await second.backend.apply(start(1, "n0", "n1"), scene.launch())
        await second.for_(ev.Running, 1)
        assert scene.nodes() == ["n0", "n1"]
        await second.close()

    scene.run(story)


def test_jobs_that_stop_all_stopped_start_when_they_are_applied_again() -> None:
    scene = scene_of()

    async def story(first: Watch) -> None:
        await first.backend.apply(start(1, "n0", "n1"), scene.launch())
        await first.for_(ev.Running, 1)
        await first.backend.stop_all()
        assert await first.backend.running() == {}
        await first.close()
        second = await scene.open(2)
        await asyncio.sleep(100)
        assert await second.backend.running() == {}
        await second.backend.apply(start(1, "n0", "n1"), scene.launch())
        await second.for_(ev.Running, 1)
        await second.close()

    scene.run(story)


def test_older_epoch_stops_writing_and_cannot_open() -> None:
    scene = scene_of()

    async def story(old: Watch) -> None:
        new = await scene.open(2)
        await asyncio.sleep(1)
        with pytest.raises(Refused, match="epoch 1 is over"):
            await old.backend.apply(start(1, "n0", "n1"), scene.launch())
        with pytest.raises(Refused, match="epoch"):
            await scene.open(1)
        await new.backend.apply(start(2, "n0", "n1"), scene.launch())
        await new.for_(ev.Running, 2)
        await new.close()

    scene.run(story)


def test_backend_whose_store_lease_is_not_renewed_writes_nothing() -> None:
    scene = scene_of()

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        scene.lease_age_s, writes = 11.0, len(scene.api.writes)
        scene.cluster._delete(scene.cluster.pods()[1])
        await asyncio.sleep(100)
        assert len(scene.api.writes) == writes, "the replacement stays gated"
        with pytest.raises(Refused, match="not renewed"):
            await watch.backend.apply(stop(2), None)
        scene.lease_age_s = 1.0
        await watch.until(lambda: scene.nodes() == ["n0", "n1"])

    scene.run(story)


def test_jobs_of_another_store_are_not_touched() -> None:
    scene = scene_of()

    async def story(other: Watch) -> None:
        await other.backend.apply(start(1, "n0", "n1"), scene.launch())
        await other.for_(ev.Running, 1)
        ours = await scene.open(1, store="s2")
        assert ours.first.running == {}
        assert ours.arrivals == []
        (foreign,) = ours.all(ev.ForeignAppeared)
        assert [(each.node, each.milli) for each in foreign.foreign] == [("n0", 1000), ("n1", 1000)]
        await ours.close()

    scene.run(story)


def test_open_waits_for_the_api_server() -> None:
    scene = scene_of()

    async def story() -> None:
        def away(_verb: str, _resource: object) -> None:
            if asyncio.get_running_loop().time() < 100:
                raise ApiError(0, "connection refused")

        scene.api.fault = away
        watch = await scene.open(1)
        assert asyncio.get_running_loop().time() >= 100
        assert len(watch.first.cluster.nodes) == 3
        await watch.close()

    run(story())


def test_time_limit_does_not_run_while_the_api_server_is_away() -> None:
    scene = scene_of()

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await asyncio.sleep(0.1)

        def away(_verb: str, _resource: object) -> None:
            raise ApiError(0, "connection refused")

        scene.api.fault = away
        scene.api.break_watches(ApiError(0, "connection lost"))
        await asyncio.sleep(600)
        assert watch.backend.is_away
        scene.api.fault = lambda _verb, _resource: None
        await watch.for_(ev.Running, 1)
        assert not watch.all(ev.OperationFailed)

    scene.run(story)


def test_job_that_ended_while_no_server_ran_is_reported_at_open() -> None:
    scene = scene_of()

    async def story(first: Watch) -> None:
        await first.backend.apply(start(1, "n0", "n1"), scene.launch())
        await first.for_(ev.Running, 1)
        await first.close()
        for pod in scene.cluster.pods():
            scene.cluster.end_pod(pod)
        await asyncio.sleep(5)
        for epoch in (2, 3):
            again = await scene.open(epoch)
            assert again.first.running == {}
            assert [event for event in again.first.report.events if isinstance(event, ev.JobsFinished)]
            await again.close()

    scene.run(story)
