"""The backend on a real API server with the real operators: what the fake API promises is true."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from levada.backends.kubernetes.backend import KubernetesBackend
from levada.backends.kubernetes.connection import Connection
from levada.backends.protocol import Face, Launch
from levada.core import events as ev
from tests.kubernetes import workloads
from tests.kubernetes.backend import jobs
from tests.kubernetes.backend.scene import Watch, resize, start, stop
from tests.kubernetes.testbed.api import ApiError
from tests.timeouts import WAIT_S

ELASTIC = {"levada.dev/min-workers": "1", "levada.dev/max-workers": "8"}
KINDS = pytest.mark.parametrize(
    ("kind", "elastic"),
    [("job", True), ("mpijob", True), ("pytorchjob", True), ("jobset", False), ("trainjob", False)],
)


class BedWatch(Watch):
    """Waits in real time."""

    async def until(self, true: Callable[[], object], what: str = "it", limit_s: float = WAIT_S) -> None:
        end = time.monotonic() + limit_s
        while not true():
            assert time.monotonic() < end, f"{what} never came: {self.events} {self.notes}"
            await asyncio.sleep(0.02)


@asynccontextmanager
async def opened(bed: Any, store: str, epoch: int = 1) -> AsyncIterator[BedWatch]:
    """A backend on the bed; each test has a store of its own."""
    backend = KubernetesBackend(Connection(str(bed.kubeconfig), "default"), store)
    watch = BedWatch(backend, await backend.open(epoch))
    try:
        yield watch
    finally:
        await watch.close()


def create(namespace: Any, kind: str) -> dict[str, Any]:
    """Hand a suspended job of two workers to Levada."""
    body = getattr(workloads, kind)("train", 2, suspend=True)
    body["metadata"] |= {"labels": {"levada.dev/queue": "default"}, "annotations": ELASTIC}
    return dict(namespace.create(body))


async def accepted(watch: BedWatch, namespace: Any) -> Launch:
    """Accept the job as `train-1` when it arrives."""

    def found() -> list[Any]:
        return [each for each in watch.arrivals if each.document["metadata"]["namespace"] == namespace.name]

    await watch.until(found, "the arrival")
    await watch.backend.accept(found()[-1].key, "train-1")
    return Launch(command=(), manifest=found()[-1].document, start_limit_s=WAIT_S)


def workers(namespace: Any) -> dict[str, str]:
    """Nodes of the workers, by uid."""
    pods = [pod for pod in namespace.pods() if "launcher" not in pod["metadata"]["name"]]
    return {pod["metadata"]["uid"]: pod["spec"].get("nodeName", "") for pod in pods}


@KINDS
async def test_job_starts_resizes_stops_and_finishes(bed: Any, namespace: Any, kind: str, elastic: bool) -> None:
    async with opened(bed, namespace.name) as watch:
        body = create(namespace, kind)
        launch = await accepted(watch, namespace)
        await watch.backend.apply(start(1, "a100-0", "a100-1"), launch)
        await watch.for_(ev.Running, 1)
        if elastic:
            first = workers(namespace)
            await watch.backend.apply(resize(2, "a100-0", "a100-1", "a100-2", "a100-2"), launch)
            await watch.for_(ev.Running, 2)
            assert first.items() < workers(namespace).items()
            await watch.backend.apply(resize(3, "a100-0", "a100-1"), launch)
            await watch.for_(ev.Running, 3)
            assert workers(namespace) == first
        await watch.backend.apply(stop(4), None)
        await watch.for_(ev.Released, 4)
        assert workers(namespace) == {}
        await watch.backend.apply(start(5, "a100-3", "a100-3"), launch)
        await watch.for_(ev.Running, 5)
        assert sorted(workers(namespace).values()) == ["a100-3", "a100-3"]
        for pod in namespace.pods():
            if kind != "mpijob" or "launcher" in pod["metadata"]["name"]:
                # The end of worker 0 may end the job, and then this pod is deleted first.
                with suppress(ApiError):
                    namespace.annotate(pod, duration="0s", exit_code="0")
        await watch.for_(ev.JobsFinished, 5)
        await watch.backend.show("train-1", Face(state="Succeeded"))
        state = "levada.dev/state"
        await watch.until(
            lambda: namespace.get(body["kind"], "train")["metadata"]["annotations"].get(state) == "Succeeded", state
        )


async def test_hole_moves_one_worker_and_the_next_backend_continues(bed: Any, namespace: Any) -> None:
    async with opened(bed, namespace.name) as watch:
        create(namespace, "pytorchjob")
        launch = await accepted(watch, namespace)
        await watch.backend.apply(start(1, "a100-0", "a100-1", "a100-2"), launch)
        await watch.for_(ev.Running, 1)
        before = workers(namespace)
        operation = resize(2, "a100-0", "a100-2", indices=(0, 2))
        await watch.backend.apply(operation, launch)
    async with opened(bed, namespace.name, epoch=2) as watch:
        await watch.backend.apply(operation, launch)
        await watch.for_(ev.Running, 2)
        assert sorted(workers(namespace).values()) == ["a100-0", "a100-2"]
        assert len(before.keys() & workers(namespace).keys()) == 1


async def test_start_that_does_not_fit_says_why(bed: Any, namespace: Any) -> None:
    async with opened(bed, namespace.name) as watch:
        create(namespace, "job")
        launch = await accepted(watch, namespace)
        late = Launch(command=(), manifest=launch.manifest, start_limit_s=3.0)
        await watch.backend.apply(start(1, *["v100-7"] * 9), late)
        failed = await watch.for_(ev.OperationFailed, 1)
        assert "on v100-7: Insufficient nvidia.com/gpu" in failed.why
        assert workers(namespace) == {}


CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "jobs.levada.dev"},
    "spec": {
        "group": "levada.dev",
        "scope": "Namespaced",
        "names": {"kind": "Job", "plural": "jobs", "singular": "job"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


async def test_pods_that_levada_makes_itself(bed: Any, namespace: Any) -> None:
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    if not [each for each in bed.api.items(definitions) if each["metadata"]["name"] == "jobs.levada.dev"]:
        bed.api.post(definitions, CRD)
        await asyncio.sleep(3)
    body = jobs.levada_job()
    bed.api.post(f"/apis/levada.dev/v1/namespaces/{namespace.name}/jobs", body)
    async with opened(bed, namespace.name) as watch:
        launch = await accepted(watch, namespace)
        await watch.backend.apply(start(1, "a100-4", "a100-5"), launch)
        await watch.for_(ev.Running, 1)
        await watch.backend.apply(resize(2, "a100-4", "a100-5", "a100-5"), launch)
        await watch.for_(ev.Running, 2)
        assert sorted(workers(namespace).values()) == ["a100-4", "a100-5", "a100-5"]
        for pod in namespace.pods():
            namespace.annotate(pod, duration="0s", exit_code="0")
        await watch.for_(ev.JobsFinished, 2)


async def test_pod_of_a_user_is_pinned_and_a_stop_deletes_it(bed: Any, namespace: Any) -> None:
    async with opened(bed, namespace.name) as watch:
        body = workloads.pod("train")
        body["metadata"]["labels"] = {"levada.dev/queue": "default"}
        namespace.create(body)
        launch = await accepted(watch, namespace)
        await watch.backend.apply(start(1, "a100-6"), launch)
        await watch.for_(ev.Running, 1)
        assert list(workers(namespace).values()) == ["a100-6"]
        await watch.backend.apply(stop(2), None)
        await watch.for_(ev.Released, 2)
        assert workers(namespace) == {}
