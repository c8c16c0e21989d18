"""Objects of users: arrivals, edits, departures, refusals, and objects that Levada never touches."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from levada.backends.kubernetes.client import EVENTS
from levada.backends.kubernetes.kinds import kind_of
from levada.backends.protocol import Face
from levada.core import events as ev
from levada.errors import NotFound, Refused
from tests.kubernetes.backend import jobs
from tests.kubernetes.backend.api_rules import Object
from tests.kubernetes.backend.scene import BackendScene, Watch, start


def edited(body: Object, how: Any) -> Object:
    how(body)
    return body


def events_of(scene: BackendScene) -> list[tuple[str, str]]:
    bodies = sorted(scene.api.all(EVENTS), key=lambda body: int(body["metadata"]["resourceVersion"]))
    return [(body["reason"], body["message"]) for body in bodies]


def change(scene: BackendScene, how: Any) -> None:
    kind = kind_of(scene.manifest["apiVersion"], scene.manifest["kind"])
    assert kind is not None
    scene.api.change(kind.resource, "ns", "train", how)


def test_labelled_job_arrives_with_its_document_and_user() -> None:
    scene = BackendScene()
    scene.adopt(
        edited(jobs.batch_job(), lambda body: body["metadata"]["annotations"].update({"levada.dev/user": "ada"}))
    )

    async def story(watch: Watch) -> None:
        (arrival,) = watch.arrivals
        assert (arrival.user, arrival.node_class) == ("ada", "any")
        assert arrival.created == datetime(2026, 11, 18, 10, tzinfo=UTC).timestamp()
        assert arrival.document["spec"]["parallelism"] == 2
        assert arrival.document["metadata"]["uid"]
        assert "status" not in arrival.document

    scene.run(story)


def test_edit_arrives_again_but_levadas_own_writes_do_not() -> None:
    scene = BackendScene()
    scene.adopt(jobs.batch_job())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        assert len(watch.arrivals) == 1
        change(scene, lambda body: body["metadata"]["annotations"].update({"levada.dev/max-workers": "4"}))
        await watch.until(lambda: len(watch.arrivals) == 2)
        assert watch.arrivals[1].key == watch.arrivals[0].key

    scene.run(story)


def test_deleted_job_departs_and_a_new_one_of_its_name_has_another_key() -> None:
    scene = BackendScene()
    scene.adopt(jobs.batch_job())

    async def story(watch: Watch) -> None:
        kind = kind_of("batch/v1", "Job")
        assert kind is not None
        scene.api.remove(kind.resource, "ns", "train")
        scene.adopt(jobs.batch_job())
        await watch.until(lambda: len(watch.arrivals) == 2)
        assert watch.departed == [watch.arrivals[0].key]
        assert watch.arrivals[0].key != watch.arrivals[1].key

    scene.run(story)


@pytest.mark.parametrize(
    "how",
    [
        lambda body: body["metadata"]["labels"].clear(),
        lambda body: body["metadata"]["labels"].update({"kueue.x-k8s.io/queue-name": "q"}),
        lambda body: body["spec"].update(managedBy="kueue.x-k8s.io/multikueue"),
        lambda body: body["metadata"].update(ownerReferences=[{"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "y", "controller": True}]),
        lambda body: body.update(status={"conditions": [{"type": "Complete", "status": "True"}]}),
    ],
    ids=["no label", "Kueue", "managedBy", "owned", "finished"],
)  # fmt: skip
def test_objects_of_others_neither_arrive_nor_are_written(how: Any) -> None:
    scene = BackendScene()
    scene.adopt(edited(jobs.batch_job(), how))

    async def story(watch: Watch) -> None:
        await asyncio.sleep(100)
        assert watch.arrivals == []
        assert [path for _, path in scene.api.writes if "/leases/" not in path] == []

    scene.run(story)


def test_job_that_runs_when_it_is_labelled_is_foreign_and_its_user_is_told_how_to_hand_it_over() -> None:
    scene = BackendScene()
    scene.adopt(edited(jobs.batch_job(), lambda body: body["spec"].update(suspend=False)))
    scene.cluster.add_pod("its-pod", "n0", 1)

    async def story(watch: Watch) -> None:
        await watch.until(lambda: events_of(scene))
        ((reason, message),) = events_of(scene)
        assert reason == "AlreadyRunning"
        assert "suspend it" in message
        assert watch.arrivals == []
        assert watch.all(ev.ForeignAppeared)
        assert scene.object()["metadata"]["annotations"] == jobs.ELASTIC
        change(scene, lambda body: body["spec"].update(suspend=True))
        await watch.until(lambda: watch.arrivals)

    scene.run(story)


def test_refused_job_shows_its_faults_and_arrives_again_when_it_changes() -> None:
    scene = BackendScene()
    scene.adopt(jobs.batch_job())

    async def story(watch: Watch) -> None:
        await watch.backend.refuse(watch.arrivals[0].key, ["spec.queue: unknown queue", "min is above max"])
        await watch.until(lambda: events_of(scene))
        assert events_of(scene) == [("Refused", "spec.queue: unknown queue\nmin is above max")]
        assert scene.object()["metadata"]["annotations"]["levada.dev/state"] == "Refused"
        change(scene, lambda body: body["metadata"]["labels"].update({"levada.dev/queue": "other"}))
        await watch.until(lambda: len(watch.arrivals) == 2)
        await watch.backend.accept(watch.arrivals[1].key, "train-1")
        await watch.backend.show("train-1", Face(state="Pending", reason="Needs 2 GPUs"))
        await watch.until(lambda: ("Queued", "Needs 2 GPUs") in events_of(scene))
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)

    scene.run(story)


def test_state_is_written_at_once_and_details_at_most_every_5_seconds() -> None:
    scene = BackendScene()
    scene.adopt(jobs.batch_job())

    async def story(watch: Watch) -> None:
        await watch.backend.accept(watch.arrivals[0].key, "train-1")
        writes = len(scene.api.writes)
        for number in range(100):
            await watch.backend.show("train-1", Face(state="Pending", reason=f"{number} jobs ahead"))
            await asyncio.sleep(0.1)
        await asyncio.sleep(10)
        assert scene.object()["metadata"]["annotations"]["levada.dev/reason"] == "99 jobs ahead"
        patches = [verb for verb, _ in scene.api.writes[writes:] if verb == "patch"]
        assert 3 <= len(patches) <= 4
        assert events_of(scene) == [("Queued", "0 jobs ahead")]
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.backend.show("train-1", Face(state="Starting", workers=2))
        await watch.for_(ev.Running, 1)
        for workers in (2, 4):
            await watch.backend.show("train-1", Face(state="Running", workers=workers))
            await asyncio.sleep(0.5)
        assert events_of(scene)[1:] == [
            ("Admitted", "Starting 2 workers"),
            ("Running", "Running"),
            ("Resized", "Resized 2 -> 4 workers"),
        ]

    scene.run(story)


def test_cancelled_job_is_deleted_with_its_pods() -> None:
    scene = BackendScene()
    scene.adopt(jobs.pytorchjob())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        with pytest.raises(Refused, match="still runs"):
            await watch.backend.forget("train-1")
        await watch.backend.ended("train-1", "Cancelled")
        await watch.until(
            lambda: not [body for body in scene.api.objects.values() if body["kind"] in ("Pod", "PyTorchJob")]
        )

    scene.run(story)


def test_forgotten_job_of_a_user_stays_without_levadas_annotations() -> None:
    scene = BackendScene()
    scene.adopt(jobs.batch_job())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        for pod in scene.cluster.pods():
            scene.cluster.end_pod(pod)
        await watch.for_(ev.JobsFinished, 1)
        await watch.backend.forget("train-1")
        assert scene.object()["metadata"]["annotations"] == jobs.ELASTIC

    scene.run(story)


def test_token_of_a_worker_names_its_job() -> None:
    scene = BackendScene()
    scene.adopt(jobs.batch_job())
    scene.cluster.add_pod("stranger", "n2")

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        name = scene.cluster.pods()[0]["metadata"]["name"]
        identity = await watch.backend.who(name)
        assert identity is not None
        assert (identity.job, identity.worker) == ("train-1", name)
        assert await watch.backend.who("stranger") is None
        assert await watch.backend.who("nonsense") is None

    scene.run(story)


@pytest.mark.parametrize("follow", [False, True])
def test_logs_are_those_of_the_pods(follow: bool) -> None:
    scene = BackendScene()
    scene.adopt(jobs.batch_job())

    async def story(watch: Watch) -> None:
        with pytest.raises(NotFound, match="no pods"):
            watch.backend.logs("train-1")
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        lines = [line async for line in watch.backend.logs("train-1", follow=follow)]
        assert sorted(line.worker for line in lines) == sorted(pod["metadata"]["name"] for pod in scene.cluster.pods())
        assert {(line.text, line.at % 1) for line in lines} == {("worker started", 0.5)}

    scene.run(story)


def test_kind_without_a_crd_is_refused() -> None:
    scene = BackendScene()
    scene.api.missing.add("pytorchjobs")
    scene.manifest = jobs.pytorchjob()

    async def story(watch: Watch) -> None:
        with pytest.raises(Refused, match=r"pytorchjobs\.kubeflow\.org: install its CRD"):
            await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        scene.manifest = {"apiVersion": "example.com/v1", "kind": "Thing"}
        with pytest.raises(Refused, match="cannot run on Kubernetes"):
            await watch.backend.apply(start(1, "n0", "n1"), scene.launch())

    scene.run(story)
