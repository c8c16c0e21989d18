"""Kubernetes backend: operators run the jobs, Levada sizes and places them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from levada.backends.kubernetes.client import NODES, PODS, TOKEN_REVIEWS, KubernetesApi
from levada.backends.kubernetes.eligibility import node_demand
from levada.backends.kubernetes.kinds import kind_of
from levada.backends.kubernetes.objects import JobObject, PodObject
from levada.backends.kubernetes.observer import ClusterObserver
from levada.backends.kubernetes.owned_job import OwnedJob
from levada.backends.kubernetes.pod_logs import pod_logs
from levada.backends.kubernetes.seats import members_of, plan_pods
from levada.backends.kubernetes.stamp import QUIT, stamp_for
from levada.backends.protocol import (
    Capabilities,
    ClusterBackend,
    Face,
    Identity,
    Launch,
    LogLine,
    Observation,
    Report,
    Seen,
    WorkerSeen,
)
from levada.core import events as ev
from levada.core.cluster import Cluster, Foreign
from levada.core.plan import Op, OpKind
from levada.errors import LevadaError, NotFound, Refused

_log = logging.getLogger(__name__)
#: Period in which nodes are looked at whose state depends on time.
_TICK_S = 5.0
_POLL_S = 0.1
#: Audience of the service-account tokens of workers.
_AUDIENCE = "levada"
_POD_UID = "authentication.kubernetes.io/pod-uid"
#: Without a watch of these the API server counts as away.
_VITAL = frozenset((PODS.plural, NODES.plural))
#: Frameworks whose operators resize them without a restart.
_IN_PLACE = frozenset(("elastic", "horovod", "torchrun"))


class KubernetesBackend(ClusterBackend):
    """Runs jobs of the store *store* on the cluster behind *api*.

    *lease_age_s*: the time since the lease of the store was renewed; above 10 s nothing is written.
    """

    def __init__(self, api: KubernetesApi, store: str, *, lease_age_s: Callable[[], float] = lambda: 0.0) -> None:
        self.capabilities = Capabilities(
            in_place=_IN_PLACE, pins_devices=False, drops_highest_first=True, runs_manifests=True
        )
        self._api, self._store = api, store
        self._observer = observer = ClusterObserver(api, store, lease_age_s)
        self._fence, self._outbox, self._queue = observer.fence, observer.outbox, observer.queue
        self._registry, self._inventory, self._watches = observer.registry, observer.inventory, observer.watches
        #: Generations of stops of jobs that nothing exists of.
        self._stopped: dict[str, int] = {}

    # --- lifecycle and observation ----------------------------------------------------------------------------------

    async def open(self, epoch: int, foreign: Sequence[Foreign] = ()) -> Observation:
        """Take the epoch, wait until all caches are complete, and return what they show."""
        return await self._observer.open(epoch, foreign)

    async def close(self) -> None:
        """Stop observing; running jobs continue."""
        await self._observer.close()
        await self._api.close()

    async def stop_all(self) -> None:
        """Suspend all jobs and wait until their pods are gone."""
        for job in self._registry.jobs.values():
            if job.stamp is not None and not job.stamp.stops and self._registry.is_held(job):
                job.stamp, job.told = msgspec.structs.replace(job.stamp, verdict=QUIT), ""
                self._queue.add(job.id)
        while any(self._registry.is_held(job) for job in self._registry.jobs.values() if job.stamp is not None):
            await asyncio.sleep(_POLL_S)

    @property
    def is_away(self) -> bool:
        """Whether the API server does not answer."""
        return self._observer.is_away

    async def reports(self) -> AsyncIterator[Report]:
        """Yield reports, each at least once; raises LevadaError when the backend has failed."""
        while not (self._observer.failure and self._outbox.queue.empty()):
            report = await self._outbox.queue.get()
            if report != Report():
                yield report
        raise LevadaError(self._observer.failure)

    async def cluster(self) -> Cluster:
        """The current nodes."""
        return self._inventory.cluster()

    async def running(self) -> Mapping[str, Seen]:
        """Jobs whose pods hold resources, by job id."""
        return self._observer.running()

    # --- operations -------------------------------------------------------------------------------------------------

    async def apply(self, op: Op, launch: Launch | None) -> None:
        """Record an operation; the queue carries it out. Idempotent on (job, generation)."""
        self._fence.check()
        job = self._registry.jobs.get(op.job)
        if job is None and op.kind == OpKind.STOP:
            # Nothing of it exists: objects with the stamp of this store are all known.
            self._stopped[op.job] = max(op.generation, self._stopped.get(op.job, 0))
            columns = {"number": np.array([op.number]), "generation": np.array([op.generation])}
            self._outbox.add(ev.Released(at=0.0, **columns))
            return
        if job is None:
            if op.generation < self._stopped.get(op.job, 0):
                return
            self._stopped.pop(op.job, None)
            job = self._registry.add(self._new_job(op.job, launch))
        before = job.stamp
        if before is not None and op.generation < before.generation:
            return
        job.since = asyncio.get_running_loop().time()
        again = before is not None and (before.verdict == QUIT or (op.kind == OpKind.STOP and before.kind != op.kind))
        if before is None or op.generation > before.generation or again:
            limit = 300.0 if launch is None else launch.start_limit_s
            stamp = stamp_for(op, store=self._store, epoch=self._fence.epoch, start_limit_s=limit, before=before)
            if stamp.previous:
                stamp = msgspec.structs.replace(stamp, previous=job.ran_on)
            job.stamp = stamp
            job.restarting = job.restarting and op.kind == OpKind.RESIZE
        job.told = ""
        self._inventory.touch(place.node for place in (job.stamp.places if job.stamp is not None else ()))
        self._queue.add(job.id)

    def _new_job(self, identity: str, launch: Launch | None) -> OwnedJob:
        manifest = {} if launch is None else launch.manifest
        kind = kind_of(str(manifest.get("apiVersion")), str(manifest.get("kind")))
        if kind is None:
            raise Refused(f"{manifest.get('kind')} {manifest.get('apiVersion')} cannot run on Kubernetes")
        if not self._watches.jobs[kind.resource.path()].is_available:
            raise Refused(f"the cluster does not know {kind.resource.plural}.{kind.resource.group}: install its CRD")
        meta = manifest.get("metadata") or {}
        namespace, uid = meta.get("namespace") or self._api.namespace, meta.get("uid", "")
        if uid:
            return OwnedJob(id=identity, kind=kind, namespace=namespace, name=meta["name"], uid=uid)
        return OwnedJob(id=identity, kind=kind, namespace=namespace, name=identity, manifest=manifest)

    # --- jobs of users ----------------------------------------------------------------------------------------------

    async def accept(self, key: str, job: str) -> None:
        """Learn that an arrival is a job."""
        if self._registry.arrived(key, job) is not None:
            self._queue.add(job)

    async def refuse(self, key: str, faults: Sequence[str]) -> None:
        """Show the faults of an arrival: an event, and `levada.dev/state: Refused`."""
        await self._show(self._registry.arrived(key), Face(state="Refused", reason="\n".join(faults)))

    async def show(self, job: str, face: Face) -> None:
        """Show the state of a job in annotations and events."""
        await self._show(self._registry.jobs.get(job), face)

    async def _show(self, job: OwnedJob | None, face: Face) -> None:
        if job is not None:
            job.face = face
            self._queue.add(job.id)

    async def ended(self, job: str, phase: str) -> None:
        """Delete the object of a cancelled job."""
        owned = self._registry.jobs.get(job)
        if owned is not None and phase == "Cancelled":
            owned.cancelled = True
            self._queue.add(job)

    async def forget(self, job: str) -> None:
        """Delete the object if Levada created it, otherwise its annotations; raises Refused while the job runs."""
        owned = self._registry.jobs.get(job)
        if owned is None:
            return
        if self._registry.is_held(owned):
            raise Refused(f"{job} still runs: stop it first")
        found = self._registry.object_of(owned)
        self._registry.forget(owned)
        if found is not None:
            await self._observer.writer.discard(owned, found)

    async def bind(self, pods: Sequence[tuple[str, str]]) -> None:
        """Bind pods with `schedulerName: levada`, named `pod/NAMESPACE/NAME`."""
        self._fence.check()
        for identity, node in pods:
            _, namespace, name = identity.split("/")
            target = {"apiVersion": "v1", "kind": "Node", "name": node}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
            await self._api.create(PODS, namespace, body, "binding")

    def node_class(self, manifest: Mapping[str, Any]) -> str:
        """The class of nodes that a manifest may use."""
        kind = kind_of(str(manifest.get("apiVersion")), str(manifest.get("kind")))
        if kind is None:
            return ""
        notes = (manifest.get("metadata") or {}).get("annotations") or {}
        draft = JobObject.of(kind.resource.api_version, kind.resource.kind, manifest.get("spec") or {}, notes)
        return self._inventory.class_of(node_demand(kind.pod_templates(draft)))

    async def who(self, token: str) -> Identity | None:
        """The worker whose service-account token this is, by TokenReview."""
        body = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": "TokenReview"}
        spec = {"token": token, "audiences": [_AUDIENCE]}
        content = await self._api.create(TOKEN_REVIEWS, "", {**body, "metadata": {}, "spec": spec})
        status = msgspec.json.decode(content).get("status") or {}
        extra = (status.get("user") or {}).get("extra") or {}
        (uid, *_) = extra.get(_POD_UID) or [""]
        pods = self._watches.pods.cache.by("uid", uid) if status.get("authenticated") else []
        job = self._registry.job_of(pods[0]) if pods else None
        return None if job is None or job.stamp is None else Identity(job=job.id, worker=pods[0].metadata.name)

    # --- for users --------------------------------------------------------------------------------------------------

    def workers(self, job: str) -> list[WorkerSeen]:
        """The pods of a job, the newest one per ordinal, with the indices of its grant."""
        owned = self._registry.jobs.get(job)
        found = None if owned is None else self._registry.object_of(owned)
        if owned is None or found is None or owned.stamp is None:
            return []
        pods = self._registry.pods_of(owned, found)
        plan = plan_pods(owned.kind, found, pods, owned.stamp.places)
        seen = []
        for ordinal, pod in sorted(plan.members.items()):
            place = plan.seating.places[ordinal] if ordinal < len(plan.seating.places) else None
            seen.append(_worker_seen(pod, place.index if place else ordinal, place.devices if place else ()))
        servers = sorted(members_of(owned.kind, found, pods, "server").items())
        return [*seen, *(_worker_seen(pod, -1 - ordinal, ()) for ordinal, pod in servers)]

    def logs(
        self,
        job: str,
        *,
        worker: str | None = None,
        tail: int | None = None,
        follow: bool = False,
        previous: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Stream the logs of its pods; those of deleted pods are gone."""
        owned = self._registry.jobs.get(job)
        pods = [] if owned is None else self._registry.pods_of(owned, self._registry.object_of(owned))
        chosen = [pod for pod in pods if worker in (None, pod.metadata.name) and pod.node]
        if not chosen:
            raise NotFound(f"{job} has no pods; the logs of deleted pods are gone")
        return pod_logs(self._api, chosen, tail=tail, follow=follow, previous=previous)


_PHASES = {"Pending": "Starting", "Running": "Running", "Succeeded": "Exited", "Failed": "Exited"}


def _worker_seen(pod: PodObject, index: int, devices: tuple[str, ...]) -> WorkerSeen:
    phase = "Stopping" if pod.is_leaving else _PHASES.get(pod.status.phase, "Lost")
    return WorkerSeen(
        name=pod.metadata.name, index=index, node=pod.node, devices=devices, phase=phase, exit_code=pod.exit_code
    )
