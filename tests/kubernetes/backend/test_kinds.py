"""Every kind of job: start, resize, stop, end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from levada.backends.kubernetes.client import SERVICES
from levada.core import events as ev
from tests.kubernetes.backend import jobs
from tests.kubernetes.backend.api_rules import Object
from tests.kubernetes.backend.scene import BackendScene, Watch, resize, start, stop

Make = Callable[..., Object]
SIZED = [jobs.batch_job, jobs.mpijob, jobs.pytorchjob, jobs.levada_job]
FIXED = [jobs.jobset, jobs.trainjob]
ALL = pytest.mark.parametrize("make", [*SIZED, *FIXED], ids=lambda make: make.__name__)


@ALL
def test_job_starts_stops_and_starts_again(make: Make) -> None:
    scene = BackendScene()
    scene.adopt(make())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        assert scene.nodes() == ["n0", "n1"]
        assert (await watch.backend.running())["train-1"].running == 2 + (make is jobs.mpijob)
        seen = watch.backend.workers("train-1")
        assert [(each.index, each.node, each.phase) for each in seen if each.index >= 0] == [
            (0, "n0", "Running"),
            (1, "n1", "Running"),
        ]
        await watch.backend.apply(stop(2), None)
        await watch.for_(ev.Released, 2)
        assert scene.cluster.pods() == []
        assert await watch.backend.running() == {}
        await watch.backend.apply(start(3, "n2", "n2"), scene.launch())
        await watch.for_(ev.Running, 3)
        assert scene.nodes() == ["n2", "n2"]
        assert watch.kinds() == ["Running", "Released", "Running"]

    scene.run(story)


@pytest.mark.parametrize("make", [jobs.batch_job, jobs.mpijob, jobs.pytorchjob], ids=lambda make: make.__name__)
def test_elastic_job_resizes_without_a_restart_of_the_others(make: Make) -> None:
    scene = BackendScene()
    scene.adopt(make())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        first = scene.workers()
        await watch.backend.apply(resize(2, "n0", "n1", "n1", "n2"), scene.launch())
        await watch.for_(ev.Running, 2)
        assert first.items() < scene.workers().items()
        assert scene.nodes() == ["n0", "n1", "n1", "n2"]
        await watch.backend.apply(resize(3, "n0"), scene.launch())
        await watch.for_(ev.Running, 3)
        assert list(scene.workers().items()) == list(first.items())[:1]
        assert watch.kinds() == ["Running", "Released", "Running", "Released", "Running"]
        if make is jobs.mpijob:
            (launcher,) = [pod for pod in scene.cluster.pods() if "launcher" in pod["metadata"]["name"]]
            assert launcher["metadata"]["annotations"]["levada.dev/touched"] == "3"

    scene.run(story)


@pytest.mark.parametrize(
    "make", [lambda: jobs.batch_job(elastic=False), lambda: jobs.pytorchjob(master=True), jobs.levada_job]
)
def test_other_jobs_restart_with_the_new_size(make: Make) -> None:
    scene = BackendScene()
    scene.adopt(make())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        first = scene.workers()
        await watch.backend.apply(resize(2, "n0", "n1", "n2"), scene.launch())
        await watch.for_(ev.Running, 2)
        assert not first.keys() & scene.workers().keys()
        assert scene.nodes() == ["n0", "n1", "n2"]
        assert watch.kinds() == ["Running", "JobsRestarted", "Released", "Running"]

    scene.run(story)


@ALL
def test_job_that_succeeds_is_finished_and_never_starts_again(make: Make) -> None:
    scene = BackendScene()
    scene.adopt(make())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        for pod in scene.cluster.pods():
            if make is not jobs.mpijob or "launcher" in pod["metadata"]["name"]:
                scene.cluster.end_pod(pod)
        await watch.for_(ev.JobsFinished, 1)
        assert [note.data for note in watch.notes] == [{"exit_code": 0}]
        assert scene.workers() == {}, "workers that the operator left running are removed"
        assert await watch.backend.running() == {}
        await watch.backend.apply(start(2, "n0", "n1"), scene.launch())
        await watch.for_(ev.JobsFinished, 2)
        assert scene.workers() == {}
        await watch.close()
        again = await scene.open(2)
        assert [type(event) for event in again.first.report.events if isinstance(event, ev.JobsFinished)]
        assert again.first.running == {}
        await again.close()

    scene.run(story)


@pytest.mark.parametrize(
    ("body", "in_place"),
    [
        (jobs.batch_job(), 1),
        (jobs.batch_job(elastic=False), 0),
        (jobs.mpijob(), 1),
        (jobs.pytorchjob(), 1),
        (jobs.pytorchjob(master=True), 0),
        (jobs.jobset(), 0),
    ],
)
def test_engine_learns_whether_a_job_resizes_in_place(body: Object, in_place: int) -> None:
    scene = BackendScene()
    scene.adopt(body)

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        assert [event.in_place.tolist() for event in watch.all(ev.ResizeModes)] == [[in_place]]

    scene.run(story)


def test_single_pod_is_pinned_and_a_stop_deletes_it() -> None:
    scene = BackendScene()
    scene.adopt(jobs.single_pod())

    async def story(watch: Watch) -> None:
        assert [arrival.document["kind"] for arrival in watch.arrivals] == ["Pod"]
        await watch.backend.apply(start(1, "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        assert scene.nodes() == ["n1"]
        await watch.backend.apply(stop(2), None)
        await watch.for_(ev.Released, 2)
        assert scene.cluster.pods() == []

    scene.run(story)


def test_workers_of_a_levada_job_know_their_rank_and_the_first_one() -> None:
    scene = BackendScene()
    scene.adopt(jobs.levada_job())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        pods = sorted(scene.cluster.pods(), key=lambda pod: pod["metadata"]["name"])
        envs = [{each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]} for pod in pods]
        assert [(env["RANK"], env["WORLD_SIZE"], env["MASTER_ADDR"]) for env in envs] == [
            ("0", "2", "train-0.train.ns.svc"),
            ("1", "2", "train-0.train.ns.svc"),
        ]
        assert [pod["spec"]["subdomain"] for pod in pods] == ["train", "train"]
        assert scene.api.read(SERVICES, "ns", "train")["spec"]["selector"] == {"levada.dev/job": "train"}

    scene.run(story)


def test_failed_worker_of_a_levada_job_fails_it_and_the_next_start_replaces_all_pods() -> None:
    scene = BackendScene()
    scene.adopt(jobs.levada_job())

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        scene.cluster.end_pod(scene.cluster.pods()[1], "Failed", 9)
        await watch.for_(ev.JobsFailed, 1)
        assert [note.data["exit_code"] for note in watch.notes] == [9]
        await watch.backend.apply(start(2, "n0", "n2"), scene.launch())
        await watch.for_(ev.Running, 2)
        assert scene.nodes() == ["n0", "n2"]

    scene.run(story)


def test_submitted_job_is_created_with_queue_gate_and_stamp() -> None:
    scene = BackendScene()
    body = jobs.batch_job("resnet")
    body["metadata"]["annotations"]["levada.dev/paths"] = "{}"
    scene.manifest = {**body, "metadata": {**body["metadata"], "namespace": "ns"}}

    async def story(watch: Watch) -> None:
        await watch.backend.apply(start(1, "n0", "n1"), scene.launch())
        await watch.for_(ev.Running, 1)
        made = scene.object("train-1")
        assert made["metadata"]["labels"]["levada.dev/queue"] == "default"
        assert "levada.dev/paths" not in made["metadata"]["annotations"]
        assert watch.arrivals == []
        await watch.backend.ended("train-1", "Cancelled")
        await watch.until(lambda: not scene.cluster.pods())

    scene.run(story)
