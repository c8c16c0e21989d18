"""All informers of the backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from levada.backends.kubernetes import names
from levada.backends.kubernetes.cache import Cache
from levada.backends.kubernetes.client import CLAIMS, LEASES, NODES, PODS, SLICES, VOLUMES, KubernetesApi
from levada.backends.kubernetes.informer import Changed, Informer, Scope
from levada.backends.kubernetes.kinds import KINDS, JobKind, group_of
from levada.backends.kubernetes.objects import (
    AnyObject,
    JobObject,
    NodeObject,
    PodObject,
    SliceObject,
    VolumeObject,
)

JobChanged = Callable[[JobKind, JobObject | None, JobObject | None], None]


class Watches:
    """Informers of jobs, pods, nodes, device slices, volumes and the Lease of the store."""

    def __init__(
        self,
        api: KubernetesApi,
        lease: str,
        *,
        job: JobChanged,
        pod: Changed[PodObject],
        node: Changed[NodeObject],
        slice_: Changed[SliceObject],
        lease_changed: Changed[AnyObject],
        connected: Callable[[str, bool], None],
    ) -> None:
        """*connected* is called with the name of a kind whenever its watch breaks or works again."""

        def informer(resource: Any, cls: Any, changed: Any, **options: Any) -> Informer[Any]:
            return Informer(api, resource, cls, changed, connected=partial(connected, resource.plural), **options)

        def nothing(_old: object, _new: object) -> None:
            pass

        by_job: Cache[PodObject] = Cache({"job": _job_group, "node": _node_of, "uid": lambda pod: [pod.metadata.uid]})
        self.pods: Informer[PodObject] = informer(PODS, PodObject, pod, cache=by_job)
        self.nodes: Informer[NodeObject] = informer(NODES, NodeObject, node)
        by_node: Cache[SliceObject] = Cache({"node": lambda found: [found.spec.node_name]})
        unneeded = Scope(optional=True, may_be_forbidden=True)
        self.slices: Informer[SliceObject] = informer(SLICES, SliceObject, slice_, cache=by_node, scope=unneeded)
        self.claims: Informer[VolumeObject] = informer(CLAIMS, VolumeObject, nothing, scope=unneeded)
        self.volumes: Informer[VolumeObject] = informer(VOLUMES, VolumeObject, nothing, scope=unneeded)
        only = Scope(api.namespace, {"fieldSelector": f"metadata.name={lease}"})
        self.lease: Informer[AnyObject] = informer(LEASES, AnyObject, lease_changed, scope=only)
        labelled = Scope(params={"labelSelector": names.QUEUE}, optional=True)
        self.jobs: dict[str, Informer[JobObject]] = {
            kind.resource.path(): informer(kind.resource, JobObject, partial(job, kind), scope=labelled)
            for kind in KINDS
        }
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def _all(self) -> list[Informer[Any]]:
        # Jobs last: when their objects are seen, pods and nodes are known.
        return [self.lease, self.nodes, self.slices, self.claims, self.volumes, self.pods, *self.jobs.values()]

    async def open(self) -> None:
        """Start all informers and wait until they have the whole state, however long the API server is away."""
        self._tasks = [asyncio.create_task(informer.run()) for informer in self._all]
        synced = asyncio.create_task(self._synced())
        done, _ = await asyncio.wait([synced, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        synced.cancel()
        for task in done:
            task.result()

    async def _synced(self) -> None:
        for informer in self._all:
            await informer.synced.wait()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The running informers."""
        return self._tasks

    async def close(self) -> None:
        """Stop all informers."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def volume_terms(self, namespace: str, claim: str) -> list[Any] | None:
        """The node selector terms of the volume that is bound to a claim; None if it has none."""
        found = self.claims.cache.get(namespace, claim)
        volume = self.volumes.cache.get("", str(found.spec.get("volumeName"))) if found is not None else None
        required = ((volume.spec.get("nodeAffinity") or {}).get("required") or {}) if volume is not None else {}
        return required.get("nodeSelectorTerms")


def _job_group(pod: PodObject) -> Iterable[tuple[str, str, str]]:
    group = group_of(pod)
    return () if group is None else (group,)


def _node_of(pod: PodObject) -> Iterable[str]:
    return (pod.node,) if pod.node else ()
