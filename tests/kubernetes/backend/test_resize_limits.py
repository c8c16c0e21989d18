"""Resizes with moves, and operations that do not succeed in time."""

from __future__ import annotations

import asyncio

from levada.backends.kubernetes.client import ApiError
from levada.core import events as ev
from tests.kubernetes.backend import jobs
from tests.kubernetes.backend.scene import BackendScene, Watch, resize, start


def scene_of(body: object = None, seed: int = 0) -> BackendScene:
    scene = BackendScene(seed)
    scene.adopt(jobs.batch_job() if body is None else body)  # type: ignore[arg-type]
    return scene


def test_hole_costs_one_migration_and_the_others_keep_their_pods() -> None:
    scene = scene_of(jobs.pytorchjob())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1", "n2", "n2"), scene.launch())
        await watch.for_(ev.Running, 1)
        first = scene.workers()
        # Index 1 leaves: ordinals 0 to 2 remain, so that the pod of ordinal 1 moves to the place of ordinal 3.
        await watch.backend.apply(resize(2, "n0", "n2", "n2", indices=(0, 2, 3)), scene.launch())
        await watch.for_(ev.Running, 2)
        assert scene.nodes() == ["n0", "n2", "n2"]
        assert len(first.keys() & scene.workers().keys()) == 2
        assert sorted(each.index for each in watch.backend.workers("train-1")) == [0, 2, 3]

    scene.run(story)


def test_rank_0_never_moves_alone() -> None:
    scene = scene_of(jobs.pytorchjob())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        first = scene.workers()
        await watch.backend.apply(resize(2, "n1", "n2"), scene.launch())
        await watch.for_(ev.Running, 2)
        assert scene.nodes() == ["n1", "n2"]
        assert not first.keys() & scene.workers().keys()
        assert watch.all(ev.JobsRestarted, 2)

    scene.run(story)


def test_start_that_does_not_fit_is_rolled_back_with_node_and_resource() -> None:
    scene = scene_of()
    scene.cluster.add_pod("other", "n1", gpus=4)

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        failed = await watch.for_(ev.OperationFailed, 1)
        assert "on n1: Insufficient nvidia.com/gpu" in failed.why
        assert scene.cluster.pods() == []
        assert scene.object()["spec"]["suspend"] is True
        assert await watch.backend.running() == {}
        await watch.backend.apply(start(2, "n0", "n2"), scene.launch())
        await watch.for_(ev.Running, 2)

    scene.run(story)


def test_growth_that_does_not_fit_is_undone_and_the_job_runs_on() -> None:
    scene = scene_of()
    scene.cluster.add_pod("other", "n2", gpus=4)

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        first = scene.workers()
        await watch.backend.apply(resize(2, "n0", "n1", "n2"), scene.launch())
        failed = await watch.for_(ev.OperationFailed, 2)
        assert "on n2: Insufficient nvidia.com/gpu" in failed.why
        assert scene.workers() == first
        assert scene.object()["spec"]["parallelism"] == 2

    scene.run(story)


def test_move_that_does_not_fit_stops_all_workers_and_asks_for_a_restart() -> None:
    scene = scene_of()
    scene.cluster.add_pod("other", "n2", gpus=4)

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        await watch.backend.apply(resize(2, "n0", "n2"), scene.launch())
        await watch.for_(ev.Released, 2)
        await watch.for_(ev.JobsLeft, 2)
        assert scene.workers() == {}

    scene.run(story)


def test_resize_that_the_server_refuses_restarts_the_job() -> None:
    scene = scene_of()

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        patch = scene.api.patch

        async def refuse(resource: object, namespace: str, name: str, body: object) -> bytes:
            is_resize = isinstance(body, dict) and "parallelism" in body.get("spec", {})
            if is_resize and scene.object()["spec"]["suspend"] is False:
                raise ApiError(422, "spec.parallelism: field is immutable for gang scheduling", "Invalid")
            return await patch(resource, namespace, name, body)  # type: ignore[arg-type]

        scene.api.patch = refuse  # type: ignore[assignment]
        await watch.backend.apply(resize(2, "n0", "n1", "n2"), scene.launch())
        await watch.for_(ev.Running, 2)
        assert watch.all(ev.JobsRestarted, 2)
        assert scene.nodes() == ["n0", "n1", "n2"]

    scene.run(story)


def test_move_waits_for_a_disruption_budget() -> None:
    scene = scene_of(jobs.pytorchjob())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch(start_limit_s=1000.0))
        await watch.for_(ev.Running, 1)
        scene.api.protected.add("train-worker-1")
        await watch.backend.apply(resize(2, "n0", "n2"), scene.launch(start_limit_s=1000.0))
        await asyncio.sleep(100)
        assert scene.nodes() == ["n0", "n1"]
        scene.api.protected.clear()
        await watch.for_(ev.Running, 2)
        assert scene.nodes() == ["n0", "n2"]

    scene.run(story)


def test_batch_job_restarts_when_moves_would_use_up_its_retries() -> None:
    scene = scene_of(jobs.batch_job(backoffLimit=1))

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        await watch.backend.apply(resize(2, "n0", "n2"), scene.launch())
        await watch.for_(ev.Running, 2)
        assert watch.all(ev.JobsRestarted, 2)
        assert not [verb for verb, _ in scene.api.writes if verb == "eviction"]

    scene.run(story)
