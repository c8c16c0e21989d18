"""Operations: repeats, old generations, edits, replacements, deleted objects and nodes."""

from __future__ import annotations

import asyncio

import pytest

from levada.backends.kubernetes.client import EVENTS, NODES
from levada.core import events as ev
from tests.kubernetes.backend import jobs
from tests.kubernetes.backend.api_rules import is_gated
from tests.kubernetes.backend.scene import BackendScene, Watch, resize, start, stop


def scene_of(body: object = None, seed: int = 0) -> BackendScene:
    scene = BackendScene(seed)
    scene.adopt(jobs.batch_job() if body is None else body)  # type: ignore[arg-type]
    return scene


def test_repeated_operation_is_reported_again_and_changes_nothing() -> None:
    scene = scene_of()

    async def story(watch: Watch) -> None:
        for _ in range(3):
            await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        first, writes = scene.workers(), len(scene.api.writes)
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1, count=2)
        assert scene.workers() == first
        assert len(scene.api.writes) == writes

    scene.run(story)


def test_older_generation_changes_nothing() -> None:
    scene = scene_of()

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(5, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 5)
        first = scene.workers()
        await watch.backend.apply(stop(4), None)
        await watch.backend.apply(resize(3, "n2"), scene.launch())
        await asyncio.sleep(100)
        assert scene.workers() == first
        assert watch.kinds() == ["Running"]

    scene.run(story)


def test_stop_overtakes_a_start() -> None:
    scene = scene_of()

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await asyncio.sleep(0.15)
        await watch.backend.apply(stop(2), None)
        await watch.for_(ev.Released, 2)
        assert await watch.backend.running() == {}
        assert not watch.all(ev.Running)

    scene.run(story)


def test_stop_of_an_unknown_job_completes_at_once() -> None:
    async def story(watch: Watch) -> None:
        await watch.backend.apply(stop(4), None)
        assert (await watch.for_(ev.Released, 4)).generation.tolist() == [4]

    BackendScene().run(story)


def test_stray_job_is_stopped_with_its_observed_generation() -> None:
    scene = scene_of()

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(3, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 3)
        await watch.backend.apply(stop(3), None)
        await watch.for_(ev.Released, 3)
        assert await watch.backend.running() == {}

    scene.run(story)


def test_released_comes_only_when_the_pods_are_gone() -> None:
    scene = scene_of()

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        scene.cluster.stuck.add("n1")
        await watch.backend.apply(stop(2), None)
        await asyncio.sleep(50)
        assert not watch.all(ev.Released)
        scene.cluster.stuck.clear()
        (pod,) = [each for each in scene.api.objects.values() if each["kind"] == "Pod"]
        scene.cluster._remove_pod("ns", pod["metadata"]["name"], pod["metadata"]["uid"])
        await watch.for_(ev.Released, 2)

    scene.run(story)


def test_failed_pod_is_replaced_and_pinned_again() -> None:
    scene = scene_of(jobs.pytorchjob())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        scene.cluster.end_pod(scene.cluster.pods()[1], "Failed", 1)
        await watch.for_(ev.WorkersStopped, 1)
        await watch.for_(ev.WorkersStarted, 1)
        assert scene.nodes() == ["n0", "n1"]

    scene.run(story)


def test_size_and_suspension_are_put_back_when_a_user_edits_them() -> None:
    scene = scene_of()

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        kind = watch.backend._registry.jobs["train-1"].kind
        scene.api.change(kind.resource, "ns", "train", lambda body: body["spec"].update(parallelism=4, completions=4))
        await watch.until(lambda: scene.object()["spec"]["parallelism"] == 2)
        (event,) = scene.api.all(EVENTS)
        assert (event["reason"], event["involvedObject"]["name"]) == ("Reverted", "train")
        await asyncio.sleep(10)
        assert scene.nodes() == ["n0", "n1"]
        assert not any(is_gated(pod) for pod in scene.cluster.pods())

    scene.run(story)


def test_deleted_object_is_reported_and_its_operation_fails() -> None:
    scene = scene_of()

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        kind = watch.backend._registry.jobs["train-1"].kind
        scene.api.remove(kind.resource, "ns", "train")
        await watch.until(lambda: watch.departed == [watch.arrivals[0].key])
        await watch.backend.apply(stop(2), None)
        await watch.for_(ev.Released, 2)
        assert scene.cluster.pods() == []

    scene.run(story)


def test_no_object_is_read_from_the_server_in_a_round() -> None:
    scene = scene_of()

    async def story(watch: Watch) -> None:
        scene.api.gets = 0
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        assert scene.api.gets == 0
        # One patch of the job and one of each pod.
        assert sorted(verb for verb, _ in scene.api.writes if verb != "create") == ["patch"] * 3

    scene.run(story)


@pytest.mark.parametrize("seed", range(5))
def test_conflicts_are_retried(seed: int) -> None:
    scene = scene_of(seed=seed)

    async def story(watch: Watch) -> None:
        kind = watch.backend._registry.jobs
        for generation in range(1, 6):
            nodes = ["n0", "n1", "n2"][: 1 + generation % 3]
            operation = start(1, *nodes) if generation == 1 else resize(generation, *nodes)
            await watch.backend.apply(operation, scene.launch())
            resource = kind["train-1"].kind.resource
            for number in range(5):
                note = {"someone": f"{generation}-{number}"}
                scene.api.change(
                    resource, "ns", "train", lambda body, note=note: body["metadata"]["annotations"].update(note)
                )
                await asyncio.sleep(0.01)
            await watch.for_(ev.Running, generation)
            assert scene.nodes() == nodes

    scene.run(story)


def test_workers_of_a_deleted_node_are_replaced_only_after_a_new_grant() -> None:
    scene = scene_of(jobs.pytorchjob())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        first = scene.workers()
        scene.cluster.stuck.add("n1")
        scene.api.remove(NODES, "", "n1")
        await watch.until(lambda: watch.all(ev.NodesLost))
        await watch.for_(ev.WorkersStopped, 1)
        await asyncio.sleep(20)
        assert [is_gated(pod) for pod in scene.cluster.pods()] == [False, True]
        await watch.backend.apply(resize(2, "n0", "n2"), scene.launch())
        await watch.for_(ev.Running, 2)
        assert scene.nodes() == ["n0", "n2"]
        assert len(first.keys() & scene.workers().keys()) == 1

    scene.run(story)


def test_adopted_job_that_was_deleted_while_no_server_ran_departs() -> None:
    scene = scene_of()

    async def story(first: Watch) -> None:
        await first.backend.apply(start(1, "n0", "n1"), scene.launch())
        await first.for_(ev.Running, 1)
        await first.close()
        resource = first.backend._registry.jobs["train-1"].kind.resource
        scene.api.remove(resource, "ns", "train")
        await asyncio.sleep(10)
        second = await scene.open(2)
        assert second.first.running == {}
        await second.backend.apply(start(2, "n0", "n1"), scene.launch())
        await second.for_(ev.OperationFailed, 2)
        assert second.departed == [first.arrivals[0].key]
        await second.close()

    scene.run(story)
