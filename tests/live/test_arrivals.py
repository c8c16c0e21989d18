"""Objects that users create in a cluster become jobs, once each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from levada.backends.protocol import Arrival, Capabilities, Face, Observation, Report
from levada.core import events as ev
from levada.core.cluster import Foreign
from levada.core.queue import Queue
from levada.live.arrivals import job_id
from levada.live.live import Live
from levada.live.store import Store
from levada.server.interfaces import WorkerIdentity
from tests.live.fake_backend import FakeBackend, FakeMachines
from tests.live.live_server import LiveServer, document

CREATED = 1_763_000_000.0
QUEUE = "levada.dev/queue"


class ScriptedCluster(FakeMachines):
    """Machines, and objects of users by key, which outlive a server."""

    def __init__(self) -> None:
        super().__init__({"n0": {"a100": 4}})
        self.objects: dict[str, Arrival] = {}


class FakeClusterBackend(FakeBackend):
    """A backend with objects of users; records what it is told."""

    capabilities = Capabilities(
        in_place=frozenset({"elastic"}), drops_highest_first=True, runs_manifests=True, pins_devices=False
    )

    def __init__(self, cluster: ScriptedCluster) -> None:
        super().__init__(cluster)
        self.objects = cluster.objects
        self.accepted: dict[str, str] = {}
        self.refused: dict[str, list[str]] = {}
        self.ends: dict[str, str] = {}
        self.faces: dict[str, list[Face]] = {}
        self.bound: list[tuple[str, str]] = []
        self.worlds: dict[str, Mapping[str, Any]] = {}
        self.manifests: dict[str, Any] = {}

    async def open(self, epoch: int, foreign: Sequence[Foreign] = ()) -> Observation:
        seen = await super().open(epoch, foreign)
        report = msgspec.structs.replace(seen.report, arrivals=tuple(self.objects.values()))
        return msgspec.structs.replace(seen, report=report)

    async def apply(self, op: Any, launch: Any) -> None:
        self.manifests[op.job] = None if launch is None else launch.manifest
        await super().apply(op, launch)

    def arrive(self, *arrivals: Arrival) -> None:
        """Objects are created or edited."""
        self.objects.update({arrival.key: arrival for arrival in arrivals})
        self._reports.put_nowait(Report(arrivals=arrivals))

    def depart(self, arrival: Arrival) -> None:
        """An object is deleted."""
        del self.objects[arrival.key]
        self._reports.put_nowait(Report(departed=(arrival.key,)))

    async def accept(self, key: str, job: str) -> None:
        self.accepted[key] = job

    async def refuse(self, key: str, faults: Sequence[str]) -> None:
        self.refused[key] = list(faults)

    async def ended(self, job: str, phase: str) -> None:
        self.ends[job] = phase

    async def show(self, job: str, face: Face) -> None:
        self.faces.setdefault(job, []).append(face)

    def world(self, job: str) -> Mapping[str, Any] | None:
        return self.worlds.get(job)

    async def bind(self, pods: Sequence[tuple[str, str]]) -> None:
        self.bound += pods


def arrival(name: str = "train", uid: str = "u1", *, size: int = 1, queue: str = "default", **notes: str) -> Arrival:
    """A batch/v1 Job; *notes* are annotations below `levada.dev/`."""
    container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    metadata = {
        "name": name,
        "namespace": "lab",
        "uid": uid,
        "creationTimestamp": "2025-11-13T02:13:20Z",
        "labels": {QUEUE: queue},
        "annotations": {f"levada.dev/{key.replace('_', '-')}": value for key, value in notes.items()},
    }
    spec = {
        "parallelism": size,
        "completions": size,
        "completionMode": "Indexed",
        "suspend": True,
        "template": {"spec": {"containers": [container], "fieldOfTomorrow": 1}},
        "fieldOfTomorrow": 1,
    }
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    return Arrival(key=f"jobs/lab/{name}/{uid}", document=body, user="ann", created=CREATED, node_class="c1")


@asynccontextmanager
async def server(
    url: str, cluster: ScriptedCluster, policy: str | None = None
) -> AsyncIterator[tuple[LiveServer, FakeClusterBackend]]:
    backend = FakeClusterBackend(cluster)
    live = Live(await Store.open(url), backend)
    await live.open(options={"rate_limit_s": 0.0, "min_run_s": 0.0, "cooldown_s": 0.0}, policy=policy)
    up = LiveServer(live, backend)
    try:
        yield up, backend
    finally:
        if not up.killed:
            live.stop()
            await up.task
            await live.close()


async def test_an_object_becomes_a_job_once(url: str) -> None:
    cluster, one = ScriptedCluster(), arrival()
    async with server(url, cluster) as (up, backend):
        backend.arrive(one, one)
        await up.until(lambda: one.key in backend.accepted)
        job = backend.accepted[one.key]
        assert (job, job_id(one)) == (job_id(one), "train-20251113-021320-" + job[-4:])
        backend.arrive(one)
        await up.until(lambda: up.phase(job) == "Running")
        await up.until(lambda: backend.faces[job][-1].state == "Running")
        view = up.service.jobs.get(job)
        assert (view["user"], view["queue"], view["kind"], view["retries"]) == ("ann", "default", "Job", 0)
        assert backend.faces[job][-1].workers == 1
        assert backend.manifests[job] == one.document, "the backend gets the object"
        assert up.live.loop.engine.query.options.highest_first
        await up.settle()
        await up.kill()
    async with server(url, cluster) as (up, backend):
        await up.until(lambda: one.key in backend.accepted)
        assert backend.accepted == {one.key: job}
        assert [record.id for record in up.live.loop.records.by_id.values()] == [job]
        assert up.phase(job) == "Running"
        backend.finish(job)
        await up.until(lambda: backend.ends.get(job) == "Succeeded")
        await up.until(lambda: backend.faces[job][-1].state == "Succeeded")


async def test_an_object_created_again_is_another_job(url: str) -> None:
    async with server(url, ScriptedCluster()) as (up, backend):
        first, second = arrival(uid="u1"), arrival(uid="u2")
        backend.arrive(first)
        await up.until(lambda: first.key in backend.accepted)
        backend.depart(first)
        backend.arrive(second)
        await up.until(lambda: second.key in backend.accepted)
        old, new = backend.accepted[first.key], backend.accepted[second.key]
        await up.until(lambda: (up.phase(old), up.phase(new)) == ("Cancelled", "Running"))
        await up.until(lambda: old in backend.ends)
        assert backend.ends == {old: "Cancelled"}


async def test_an_object_that_vanishes_while_the_server_is_down_is_cancelled(url: str) -> None:
    cluster, one, two = ScriptedCluster(), arrival(uid="u1"), arrival("other", uid="u2")
    async with server(url, cluster) as (up, backend):
        backend.arrive(one, two)
        await up.until(lambda: len(backend.accepted) == 2)
        jobs = backend.accepted
        (own,) = await up.service.submissions.submit([document()], user="ann", key=None)
    del cluster.objects[one.key]
    async with server(url, cluster) as (up, backend):
        await up.until(lambda: up.phase(jobs[one.key]) == "Cancelled")
        assert up.phase(jobs[two.key]) == up.phase(own["id"]) == "Running"


async def test_a_bad_object_is_refused_until_it_or_its_queue_is_right(url: str) -> None:
    async with server(url, ScriptedCluster()) as (up, backend):
        bad, lost, good = (
            arrival("bad", min_workers="4", max_workers="2"),
            arrival("lost", queue="lab"),
            arrival("good"),
        )
        backend.arrive(bad, lost, good)
        await up.until(lambda: good.key in backend.accepted)
        assert backend.refused[bad.key] == ["metadata.annotations.levada.dev/max-workers: must be at least min (4)"]
        assert backend.refused[lost.key][0].startswith("metadata.labels[levada.dev/queue]: there is no queue lab")
        await up.live.loop.apply(ev.QueuesChanged(at=0.0, queues=(Queue(name="default"), Queue(name="lab"))))
        await up.until(lambda: lost.key in backend.accepted)
        backend.arrive(arrival("bad", min_workers="1", max_workers="2"))
        await up.until(lambda: bad.key in backend.accepted)
        view = up.service.jobs.get(backend.accepted[bad.key])
        assert (view["min"], view["max"]) == (1, 2)


async def test_no_object_stops_the_others(url: str) -> None:
    async with server(url, ScriptedCluster()) as (up, backend):
        broken, good = arrival("broken"), arrival("good", uid="u2")
        broken.document["metadata"]["annotations"] = {"levada.dev/priority": "9" * 18}
        vast = msgspec.structs.replace(arrival("vast", uid="u3"), user="u" * 300)
        vast.document["metadata"]["name"] = "n" * 253
        vast.document.update(apiVersion="v1", kind="Pod", spec=vast.document["spec"]["template"]["spec"])
        mad = msgspec.structs.replace(arrival("mad", uid="u4"), created=float("inf"))
        backend.arrive(broken, mad, vast, good)
        await up.until(lambda: {good.key, vast.key} <= backend.accepted.keys() and mad.key in backend.refused)
        assert backend.refused.keys() == {broken.key, mad.key}
        backend.depart(vast)
        await up.until(lambda: up.phase(backend.accepted[vast.key]) == "Cancelled")


async def test_edits_of_the_object_change_the_job(url: str) -> None:
    cluster = ScriptedCluster()
    async with server(url, cluster) as (up, backend):
        one = arrival(min_workers="1", max_workers="2")
        backend.arrive(one)
        await up.until(lambda: one.key in backend.accepted)
        job = backend.accepted[one.key]
        await up.until(lambda: up.service.jobs.get(job)["gpus"] == 2)
        backend.arrive(arrival(min_workers="1", max_workers="4", priority="7"))
        await up.until(lambda: up.service.jobs.get(job)["gpus"] == 4)
        assert up.service.jobs.get(job)["priority"] == 7
        await up.service.jobs.update(job, {"priority": 9})
        backend.arrive(arrival(min_workers="1", max_workers="3", priority="7"))
        await up.until(lambda: up.service.jobs.get(job)["max"] == 3)
        assert up.service.jobs.get(job)["priority"] == 9, "only what changed in the object changes the job"
        backend.arrive(arrival(min_workers="1", max_workers="3", priority="7", suspend="true"))
        await up.until(lambda: up.phase(job) == "Suspended")
        await up.settle()
        await up.kill()
    async with server(url, cluster) as (up, backend):
        await up.until(lambda: bool(backend.accepted))
        view = up.service.jobs.get(job)
        assert (view["phase"], view["priority"], view["max"]) == ("Suspended", 9, 3)
        backend.arrive(arrival(min_workers="1", max_workers="3", priority="7"))
        await up.until(lambda: up.phase(job) == "Running")


async def test_a_job_that_was_forgotten_does_not_run_again(url: str) -> None:
    cluster, one = ScriptedCluster(), arrival()
    async with server(url, cluster) as (up, backend):
        backend.arrive(one)
        await up.until(lambda: up.live.loop.records.by_id and up.phase(job_id(one)) == "Running")
        backend.finish(job_id(one))
        await up.until(lambda: up.phase(job_id(one)) == "Succeeded")
        await up.live.free_name(up.live.loop.records.by_id[job_id(one)])
        two = arrival("two")
        backend.arrive(one, two)
        await up.until(lambda: two.key in backend.accepted)
        assert job_id(one) not in up.live.loop.records.by_id


async def test_workers_learn_of_resizes_in_the_answer_to_a_report(url: str) -> None:
    async with server(url, ScriptedCluster()) as (up, backend):
        one = arrival()
        backend.arrive(one)
        await up.until(lambda: one.key in backend.accepted and up.phase(job_id(one)) == "Running")
        world = {"generation": 1, "members": ["g1-0"], "master": {"address": "train-0", "port": 29500}}
        backend.worlds[job_id(one)] = world
        answer = await up.service.workers.report(WorkerIdentity(job_id(one), 0, "g1-0"), {"step": 1})
        assert answer == {"world": world}


async def test_serving_pods_are_bound_to_nodes_by_name(url: str) -> None:
    async with server(url, ScriptedCluster(), "dragon") as (up, backend):
        pod = Foreign(id="pod/lab/answers", node=None, milli=1000, serving=True)
        backend.report(ev.ForeignAppeared(at=0.0, foreign=(pod,)))
        await up.until(lambda: backend.bound)
        assert backend.bound == [("pod/lab/answers", "n0")]
