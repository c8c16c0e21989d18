"""A fake cluster with a backend on it, and what the backend reported."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from levada.backends.kubernetes.backend import KubernetesBackend
from levada.backends.kubernetes.kinds import kind_of
from levada.backends.protocol import Arrival, Launch, Note, Observation
from levada.core import events as ev
from levada.core.cluster import Foreign
from levada.core.grant import Grant, WorkerPlace
from levada.core.plan import Op, OpKind
from tests.kubernetes.backend.api_rules import Object
from tests.kubernetes.backend.fake_api import FakeApi
from tests.kubernetes.backend.fake_cluster import FakeCluster
from tests.kubernetes.backend.virtual_time import run

JOB, NUMBER, STORE = "train-1", 7, "s1"


def op(kind: int, generation: int, *nodes: str, job: str = JOB, number: int = NUMBER, indices: Any = None) -> Op:
    """An operation with one worker for each of *nodes*; devices are numbered per node."""
    seen: Counter[str] = Counter()
    places = []
    for position, node in enumerate(nodes):
        index = position if indices is None else indices[position]
        places.append(WorkerPlace(index=index, node=node, devices=(str(seen[node]),)))
        seen[node] += 1
    grant = Grant(gpu_type="a100", workers=len(places), places=tuple(places)) if places else None
    return Op(job=job, number=number, kind=kind, generation=generation, grant=grant)


def start(generation: int, *nodes: str, **fields: Any) -> Op:
    return op(OpKind.START, generation, *nodes, **fields)


def resize(generation: int, *nodes: str, **fields: Any) -> Op:
    return op(OpKind.RESIZE, generation, *nodes, **fields)


def stop(generation: int, **fields: Any) -> Op:
    return op(OpKind.STOP, generation, **fields)


class Watch:
    """A backend at work and its reports."""

    def __init__(self, backend: KubernetesBackend, first: Observation) -> None:
        self.backend, self.first = backend, first
        self.events: list[ev.Event] = list(first.report.events)
        self.notes: list[Note] = list(first.report.notes)
        self.arrivals: list[Arrival] = list(first.report.arrivals)
        self.departed: list[str] = list(first.report.departed)
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for report in self.backend.reports():
            self.events += report.events
            self.notes += report.notes
            self.arrivals += report.arrivals
            self.departed += report.departed

    def all(self, kind: type[Any], generation: int | None = None) -> list[Any]:
        """Events of a kind."""
        found = [event for event in self.events if isinstance(event, kind)]
        return [event for event in found if generation is None or event.generation.tolist() == [generation]]

    def kinds(self) -> list[str]:
        """The names of events about operations on jobs."""
        found = [event for event in self.events if isinstance(event, ev.JobEvent)]
        return [type(event).__name__ for event in found if not isinstance(event, ev.ResizeModes)]

    async def until(self, true: Callable[[], object], what: str = "it", limit_s: float = 1000.0) -> None:
        """Wait for something."""
        end = asyncio.get_running_loop().time() + limit_s
        while not true():
            assert asyncio.get_running_loop().time() < end, f"{what} never came: {self.events} {self.notes}"
            await asyncio.sleep(0.05)

    async def for_(self, kind: type[Any], generation: int | None = None, count: int = 1) -> Any:
        """Wait for an event."""
        await self.until(lambda: len(self.all(kind, generation)) >= count, f"{kind.__name__} of {generation}")
        return self.all(kind, generation)[-1]

    async def close(self) -> None:
        """Stop listening and close the backend."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self.backend.close()


class BackendScene:
    """A cluster of three nodes with four GPUs each, and a job in namespace `ns`."""

    def __init__(self, seed: int = 0, nodes: int = 3, api: FakeApi | None = None) -> None:
        self.cluster = FakeCluster(api, seed=seed)
        self.api = self.cluster.api
        for number in range(nodes):
            self.cluster.add_node(f"n{number}")
        self.lease_age_s = 0.0
        self.manifest: Mapping[str, Any] = {}

    def adopt(self, body: Object) -> None:
        """A user creates a job; operations of the scene act on it."""
        created = self.cluster.create(body)
        self.manifest = {**body, "metadata": created["metadata"]}

    def launch(self, **fields: Any) -> Launch:
        return Launch(**{"command": (), "manifest": self.manifest, "start_limit_s": 60.0, **fields})

    async def open(self, epoch: int = 1, foreign: tuple[Foreign, ...] = (), store: str = STORE) -> Watch:
        """Open another backend on the cluster."""
        backend = KubernetesBackend(self.api, store, lease_age_s=lambda: self.lease_age_s)
        return Watch(backend, await backend.open(epoch, foreign))

    def run(self, story: Callable[[Watch], Awaitable[None]]) -> None:
        """Run a test with an open backend in virtual time."""

        async def whole() -> None:
            watch = await self.open()
            await story(watch)
            await watch.close()

        run(whole())

    def object(self, name: str = "train") -> Object:
        """The job in the cluster."""
        kind = kind_of(self.manifest["apiVersion"], self.manifest["kind"])
        assert kind is not None
        return self.api.read(kind.resource, "ns", name)

    def workers(self) -> dict[str, str]:
        """Nodes of the running pods with GPUs, by uid."""
        return {
            pod["metadata"]["uid"]: pod["spec"].get("nodeName", "")
            for pod in self.cluster.pods()
            if pod["status"]["phase"] == "Running" and pod["spec"]["containers"][0].get("resources")
        }

    def nodes(self) -> list[str]:
        """The nodes of the running workers."""
        return sorted(self.workers().values())
