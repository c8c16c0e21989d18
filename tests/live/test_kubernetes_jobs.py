"""A server on the Kubernetes backend and a fake API: jobs are objects from creation to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from levada.backends.kubernetes.backend import KubernetesBackend
from levada.backends.kubernetes.client import EVENTS, Resource
from levada.live.live import Live
from levada.live.service import Service
from levada.live.store import Store
from levada.server.interfaces import WorkerIdentity
from tests.kubernetes.backend import jobs
from tests.kubernetes.backend.fake_api import Object
from tests.kubernetes.backend.fake_cluster import RESOURCES, FakeCluster

BATCH = RESOURCES["batch/v1", "Job"]
LIMIT_S = 60.0


class ClusterServer:
    """A running server on a fake cluster."""

    def __init__(self, live: Live, cluster: FakeCluster) -> None:
        self.live, self.cluster, self.service = live, cluster, Service(live)
        self.task = asyncio.create_task(live.run())

    async def until(self, true: Callable[[], object], what: str = "") -> None:
        """Wait until *true* holds."""
        try:
            async with asyncio.timeout(LIMIT_S):
                while not true():
                    if self.task.done():
                        self.task.result()
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{what}: {self.live.loop.engine.query.ids} {self.cluster.pods()}") from None

    def jobs(self) -> dict[str, str]:
        """Phases of all jobs by workload."""
        page, _ = self.service.jobs.page(phases=None, user=None, queue=None, labels={}, after=None, limit=100)
        return {job["workload"]: job["phase"] for job in page}

    def running(self) -> int:
        """Running pods with GPUs."""
        return sum(pod["status"]["phase"] == "Running" for pod in self.cluster.pods())

    def notes(self, resource: Resource = BATCH, name: str = "train") -> Any:
        """Annotations of an object below `levada.dev/`."""
        notes = self.cluster.api.read(resource, "ns", name)["metadata"].get("annotations", {})
        return {key.removeprefix("levada.dev/"): value for key, value in notes.items()}


@asynccontextmanager
async def serving(url: str, cluster: FakeCluster) -> AsyncIterator[ClusterServer]:
    store = await Store.open(url)
    live: Live
    backend = KubernetesBackend(cluster.api, await store.identity(), lease_age_s=lambda: live.lease_age_s())
    live = Live(store, backend)
    await live.open(options={"rate_limit_s": 0.0, "min_run_s": 0.0, "cooldown_s": 0.0})
    up = ClusterServer(live, cluster)
    try:
        yield up
    finally:
        live.stop()
        await up.task
        await live.close()


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    for number in range(2):
        cluster.add_node(f"n{number}")
    return cluster


def annotate(cluster: FakeCluster, **notes: str) -> None:
    """A user edits the annotations of the job."""
    changes = {f"levada.dev/{name.replace('_', '-')}": value for name, value in notes.items()}
    cluster.api.change(BATCH, "ns", "train", lambda body: body["metadata"]["annotations"].update(changes))


async def test_a_job_made_with_kubectl_runs_resizes_and_ends(sqlite_url: str, cluster: FakeCluster) -> None:
    async with serving(sqlite_url, cluster) as up:
        cluster.create(jobs.batch_job())
        await up.until(lambda: up.running() == 8, "it grows to its maximum")
        await up.until(lambda: up.notes().get("state") == "Running", "its state is shown")
        (record,) = up.live.loop.records.by_id.values()
        assert (record.id.startswith("train-"), record.user) == (True, "ns")
        annotate(cluster, max_workers="3")
        await up.until(lambda: up.running() == 3, "it shrinks")
        await up.until(lambda: up.notes().get("workers") == "3", "its size is shown")
        survivors = {pod["metadata"]["uid"] for pod in cluster.pods()}
    assert up.running() == 3, "jobs outlive the server"
    async with serving(sqlite_url, cluster) as up:
        await up.until(lambda: up.jobs() == {"train": "Running"}, "it is adopted by the next server")
        assert list(up.live.loop.records.by_id) == [record.id], "and is the same job"
        assert {pod["metadata"]["uid"] for pod in cluster.pods()} == survivors
        for pod in cluster.pods():
            cluster.end_pod(pod)
        await up.until(lambda: up.jobs() == {"train": "Succeeded"}, "it ends")
        await up.until(lambda: up.notes().get("state") == "Succeeded", "its end is shown")
        await up.until(lambda: {"Resized", "Succeeded"} <= {event["reason"] for event in cluster.api.all(EVENTS)})


async def test_an_object_that_is_deleted_is_cancelled(sqlite_url: str, cluster: FakeCluster) -> None:
    async with serving(sqlite_url, cluster) as up:
        cluster.create(jobs.mpijob())
        await up.until(lambda: up.jobs() == {"train": "Running"})
        cluster.api.remove(RESOURCES["kubeflow.org/v2beta1", "MPIJob"], "ns", "train", 0)
        await up.until(lambda: not cluster.pods())
        await up.until(lambda: up.jobs() == {"train": "Cancelled"})
        assert not up.live.loop.engine.query.ids, "its room is free again"


async def test_a_cancelled_job_is_deleted(sqlite_url: str, cluster: FakeCluster) -> None:
    async with serving(sqlite_url, cluster) as up:
        cluster.create(jobs.jobset())
        await up.until(lambda: up.jobs() == {"train": "Running"})
        (job,) = up.live.loop.records.by_id
        await up.service.jobs.cancel(job)
        await up.until(
            lambda: not cluster.pods() and not cluster.api.all(RESOURCES["jobset.x-k8s.io/v1alpha2", "JobSet"])
        )
        await up.until(lambda: up.jobs() == {"train": "Cancelled"})
        assert not up.live.loop.engine.query.ids, "its room is free again"


async def test_workers_report_with_service_account_tokens(sqlite_url: str, cluster: FakeCluster) -> None:
    async with serving(sqlite_url, cluster) as up:
        cluster.create(jobs.batch_job(size=1, elastic=False))
        await up.until(lambda: up.jobs() == {"train": "Running"})
        (pod,), (job,) = cluster.pods(), up.live.loop.records.by_id
        # In the fake cluster, the name of a pod is its token.
        identity = await up.service.workers.identify(pod["metadata"]["name"])
        assert identity == (job, 0, pod["metadata"]["name"])
        assert await up.service.workers.identify("unknown") is None
        assert await up.service.workers.report(WorkerIdentity(*identity), {"step": 5}) == {}
        await up.until(lambda: (up.service.jobs.get(job)["progress"] or {})["step"] == 5)


async def test_a_submitted_manifest_becomes_an_object(sqlite_url: str, cluster: FakeCluster) -> None:
    async with serving(sqlite_url, cluster) as up:
        manifest = jobs.batch_job("mine", size=1, elastic=False)
        manifest["metadata"]["uid"] = "of an export"
        (job,) = await up.service.submissions.submit([manifest], user="ann", key=None)
        await up.until(lambda: up.jobs() == {"mine": "Running"})
        (made,) = cluster.api.all(BATCH)
        assert made["metadata"]["name"] == job["id"]
        for pod in cluster.api.all(RESOURCES["v1", "Pod"]):
            cluster.end_pod(pod)
        await up.until(lambda: up.jobs() == {"mine": "Succeeded"})


async def test_a_bad_object_says_why(sqlite_url: str, cluster: FakeCluster) -> None:
    body: Object = jobs.batch_job()
    body["metadata"]["annotations"]["levada.dev/min-workers"] = "9"
    async with serving(sqlite_url, cluster) as up:
        cluster.create(body)
        await up.until(lambda: up.notes().get("state") == "Refused")
        assert up.notes()["reason"] == "metadata.annotations.levada.dev/max-workers: must be at least min (9)"
        annotate(cluster, min_workers="1")
        await up.until(lambda: up.jobs() == {"train": "Running"})
        await up.until(lambda: up.notes().get("state") == "Running")
