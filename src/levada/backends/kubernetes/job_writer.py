"""Writes to the cluster.

Every write asks the fence first, and names the version or uid that it is meant for.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from levada.backends.kubernetes import names
from levada.backends.kubernetes.client import EVENTS, PODS, SERVICES, ApiError, KubernetesApi
from levada.backends.kubernetes.face import event_body
from levada.backends.kubernetes.fence import LeaseFence
from levada.backends.kubernetes.informer import Informer
from levada.backends.kubernetes.kinds.kind import SERVER
from levada.backends.kubernetes.kinds.levada_job import RankOf, new_pod, new_service
from levada.backends.kubernetes.objects import JobObject, PodObject
from levada.backends.kubernetes.owned_job import OwnedJob
from levada.backends.kubernetes.work import Expectations

#: Answer to an eviction that a PodDisruptionBudget forbids.
_TOO_MANY_REQUESTS = 429


class JobWriter:
    """Creates, patches and deletes jobs and pods; answers go into the caches at once."""

    def __init__(
        self,
        api: KubernetesApi,
        fence: LeaseFence,
        pods: Informer[PodObject],
        jobs: Mapping[str, Informer[JobObject]],
        node_exists: Callable[[str], bool],
    ) -> None:
        """*jobs*: informers by `JobKind.resource.path()`; *node_exists*: whether a node is part of the cluster."""
        self._api, self._fence, self._pods, self._jobs = api, fence, pods, jobs
        self.has_node = node_exists
        self.expectations = Expectations()

    # --- jobs -------------------------------------------------------------------------------------------------------

    async def create_job(self, job: OwnedJob) -> None:
        """Create the object of a job with its stamp, size and gate."""
        self._fence.check()
        body = new_object(job)
        content = await self._api.create(job.kind.resource, job.namespace, body)
        found = self._jobs[job.kind.resource.path()].put(content)
        job.uid = found.metadata.uid

    async def patch_job(
        self, job: OwnedJob, found: JobObject, spec: Mapping[str, Any], annotations: Mapping[str, str]
    ) -> bool:
        """Write a spec and annotations if they differ from those of this version of the object."""
        notes = found.metadata.annotations
        changed = {name: value for name, value in annotations.items() if notes.get(name) != value}
        difference = merge_patch(found.spec, spec)
        if not changed and not difference:
            return False
        self._fence.check()
        meta: dict[str, Any] = {"resourceVersion": found.metadata.resource_version}
        patch: dict[str, Any] = {"metadata": meta}
        if changed:
            meta["annotations"] = changed
        if difference:
            patch["spec"] = difference
        content = await self._api.patch(job.kind.resource, job.namespace, job.name, patch)
        self._jobs[job.kind.resource.path()].put(content)
        return True

    async def discard(self, job: OwnedJob, found: JobObject) -> None:
        """Delete an object that Levada created; remove Levada's annotations from an object of a user."""
        if found.metadata.labels.get(names.MANAGED_BY) == "levada":
            await self.delete_job(job, found)
            return
        present = {name: None for name in names.WRITTEN if name in found.metadata.annotations}
        if present:
            self._fence.check()
            meta = {"resourceVersion": found.metadata.resource_version, "annotations": present}
            request = self._api.patch(job.kind.resource, job.namespace, job.name, {"metadata": meta})
            await self._ignore_missing(request)

    async def delete_job(self, job: OwnedJob, found: JobObject) -> None:
        """Delete the object of a job; its pods follow."""
        uid = found.metadata.uid
        if found.metadata.deletion_timestamp is None and not self.expectations.pending(uid):
            self._fence.check()
            await self._ignore_missing(self._api.delete(job.kind.resource, job.namespace, job.name, uid=uid))
            self.expectations.expect(uid)

    async def event(self, found: JobObject, reason: str, message: str) -> None:
        """Record an event of an object; events are not retried."""
        self._fence.check()
        body = event_body(found, reason, message, time.time())
        with suppress(ApiError):
            await self._api.create(EVENTS, found.metadata.namespace, body)

    # --- pods -------------------------------------------------------------------------------------------------------

    async def pin(self, pod: PodObject, node: str) -> None:
        """Remove the gate of a pod and pin it to a node, if it is still the same gated pod."""
        uid = pod.metadata.uid
        self._fence.check()
        gates = [gate.name for gate in pod.spec.scheduling_gates]
        at = f"/spec/schedulingGates/{gates.index(names.GATE)}"
        selector = {**pod.spec.node_selector, names.HOSTNAME: node}
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": f"{at}/name", "value": names.GATE},
            {"op": "remove", "path": at},
            {"op": "add", "path": "/spec/nodeSelector", "value": selector},
        ]
        try:
            self._pods.put(await self._api.patch(PODS, pod.metadata.namespace, pod.metadata.name, patch))
        except ApiError as error:
            if not error.is_missing:
                raise

    def is_node_gone(self, pod: PodObject) -> bool:
        """Whether a pod is bound to a node that is not part of the cluster any more."""
        return bool(pod.spec.node_name) and not self.has_node(pod.spec.node_name)

    async def delete_pods(self, pods: Sequence[PodObject]) -> None:
        """Delete pods with their own grace period; at once if their node does not exist any more."""
        for pod in pods:
            uid = pod.metadata.uid
            if not self.expectations.pending(uid):
                self._fence.check()
                meta, grace = pod.metadata, 0 if self.is_node_gone(pod) else None
                request = self._api.delete(PODS, meta.namespace, meta.name, uid=uid, grace_s=grace)
                await self._ignore_missing(request)
                self.expectations.expect(uid)

    async def evict(self, pods: Sequence[PodObject]) -> bool:
        """Delete pods unless a PodDisruptionBudget forbids it now; False if it does."""
        allowed = True
        for pod in pods:
            meta = pod.metadata
            if self.expectations.pending(meta.uid):
                continue
            self._fence.check()
            options = {"preconditions": {"uid": meta.uid}}
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": meta.name}}
            try:
                request = self._api.create(PODS, meta.namespace, {**body, "deleteOptions": options}, "eviction")
                await self._ignore_missing(request)
                self.expectations.expect(meta.uid)
            except ApiError as error:
                if error.code != _TOO_MANY_REQUESTS:
                    raise
                allowed = False
        return allowed

    async def create_pod(self, job: OwnedJob, found: JobObject, ordinal: int, node: str) -> None:
        """Create the pod of one worker."""
        self._fence.check()
        assert job.stamp is not None
        (template,) = job.kind.pod_templates(found)
        rank = RankOf(job=job.id, rank=ordinal, size=job.stamp.size, generation=job.stamp.world)
        self._pods.put(await self._api.create(PODS, job.namespace, new_pod(found, template, node, rank)))

    async def create_service(self, job: OwnedJob, found: JobObject) -> None:
        """Create the Service that gives the pods of a job their host names."""
        self._fence.check()
        try:
            await self._api.create(SERVICES, job.namespace, new_service(found))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def touch_servers(self, job: OwnedJob, found: JobObject, generation: int) -> None:
        """Change an annotation of the launcher: its kubelet then refreshes mounted files at once."""
        for pod in self._pods.cache.by("job", job.pods_key):
            if job.kind.place_of(found, pod)[0] == SERVER and pod.status.phase == "Running" and not pod.is_leaving:
                self._fence.check()
                patch = {"metadata": {"annotations": {names.TOUCHED: str(generation)}}}
                await self._ignore_missing(self._api.patch(PODS, pod.metadata.namespace, pod.metadata.name, patch))

    async def _ignore_missing(self, request: Awaitable[object]) -> None:
        try:
            await request
        except ApiError as error:
            if error.code not in (404, 409):
                raise


def new_object(job: OwnedJob) -> dict[str, Any]:
    """The object of a job that was submitted to Levada: the user's manifest with name, queue, stamp, size and gate."""
    assert job.stamp is not None
    meta = dict(job.manifest.get("metadata") or {})
    notes = {name: value for name, value in (meta.get("annotations") or {}).items() if name not in names.CLIENT_ONLY}
    labels = {names.QUEUE: "default", **(meta.get("labels") or {}), names.MANAGED_BY: "levada"}
    resource = job.kind.resource
    draft = JobObject.of(resource.api_version, resource.kind, job.manifest.get("spec") or {}, notes)
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": job.name, "labels": labels, "annotations": {**notes, **job.stamp.annotations()}},
        "spec": job.kind.planned(draft, job.stamp.size, suspend=False),
    }


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that changes *old* to *new*; lists are replaced as a whole."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if below := merge_patch(before, value):
                patch[name] = below
        elif name not in old or before != value:
            patch[name] = value
    return patch
