"""Registry: the jobs of this store and their objects.

It reports objects that users create, edit and delete.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial

from levada.backends.kubernetes import names
from levada.backends.kubernetes.adoption import HOW_TO_HAND_OVER, Owner, arrival_of, digest, key_of, owner_of, parse_key
from levada.backends.kubernetes.client import Resource
from levada.backends.kubernetes.eligibility import node_demand
from levada.backends.kubernetes.face import shown_in
from levada.backends.kubernetes.inventory import ClusterInventory
from levada.backends.kubernetes.kinds import KINDS, JobKind, group_of
from levada.backends.kubernetes.kinds.kind import WORKER
from levada.backends.kubernetes.objects import JobObject, PodObject
from levada.backends.kubernetes.outbox import Outbox
from levada.backends.kubernetes.owned_job import OwnedJob
from levada.backends.kubernetes.seats import holders
from levada.backends.kubernetes.stamp import stamp_of
from levada.backends.kubernetes.watches import Watches


class JobRegistry:
    """Finds the job of an object or pod, and the object and pods of a job. Reads only caches."""

    def __init__(self, store: str, outbox: Outbox, changed: Callable[[str], None]) -> None:
        """*changed* is called with the id of a job whose object or pods changed."""
        #: Set by the observer: both call the registry when they change.
        self.watches: Watches
        self.inventory: ClusterInventory
        #: Jobs by id; an object that was refused, or waits to be accepted, has its key for an id.
        self.jobs: dict[str, OwnedJob] = {}
        self._store, self._outbox, self._changed = store, outbox, changed
        self._by_object: dict[tuple[str, str, str], OwnedJob] = {}
        self._by_pods: dict[tuple[str, str, str], OwnedJob] = {}
        #: What was reported of each arrival, by key.
        self._reported: dict[str, bytes] = {}
        self._is_open = False

    def open(self) -> None:
        """Adopt the objects with the stamp of this store, and report all objects that belong to Levada."""
        self._is_open = True
        for kind, found in self._objects():
            stamp = stamp_of(found.metadata.annotations)
            if stamp is not None and owner_of(kind, found, self._store) is Owner.OURS:
                job = self._new(stamp.job, kind, found)
                job.stamp, job.shown = stamp, shown_in(found.metadata.annotations)
                job.restarting = kind.is_suspended(found) and not stamp.stops and not kind.makes_pods
                job.since = asyncio.get_running_loop().time()
                job.ran_on = stamp.previous or stamp.places
        for kind, found in self._objects():
            self.job_changed(kind, None, found)

    def _objects(self) -> list[tuple[JobKind, JobObject]]:
        return [
            (kind, found)
            for kind in KINDS
            for _, found in sorted(self.watches.jobs[kind.resource.path()].cache.objects.items())
        ]

    # --- lookups ----------------------------------------------------------------------------------------------------

    def object_of(self, job: OwnedJob) -> JobObject | None:
        """The object of a job; None if it does not exist, or another one has its name."""
        found = self.watches.jobs[job.kind.resource.path()].cache.get(job.namespace, job.name)
        return None if found is None or (job.uid and found.metadata.uid != job.uid) else found

    def pods_of(self, job: OwnedJob, found: JobObject | None) -> list[PodObject]:
        """The pods of a job; without its object, those that are left of it."""
        pods = self.watches.pods.cache.by("job", job.pods_key)
        if found is not None:
            return [pod for pod in pods if job.kind.owns(found, pod)]
        left = JobObject.of(job.kind.resource.api_version, job.kind.resource.kind, {}, {}, uid=job.uid)
        return [pod for pod in pods if job.uid and job.kind.owns(left, pod)]

    def is_own(self, pod: PodObject) -> bool:
        """Whether a pod uses a place of a grant; e.g. a launcher without a place of its own does not."""
        job = self.job_of(pod)
        if job is None or job.stamp is None:
            return False
        found = self.object_of(job)
        group = WORKER if found is None else job.kind.place_of(found, pod)[0]
        return group == WORKER or any(place.group == group for place in job.stamp.places)

    def job_of(self, pod: PodObject) -> OwnedJob | None:
        """The job of a pod."""
        group = group_of(pod)
        return None if group is None else self._by_pods.get(group)

    def used_ids(self) -> Mapping[str, AbstractSet[str]]:
        """The device ids that grants name, by node."""
        used: dict[str, set[str]] = defaultdict(set)
        for job in self.jobs.values():
            if job.stamp is not None and (not job.stamp.stops or job.told != "Released"):
                for place in (*job.stamp.places, *job.stamp.previous):
                    used[place.node].update(place.devices)
        return used

    def is_held(self, job: OwnedJob) -> bool:
        """Whether pods of a job hold resources."""
        return bool(holders(self.pods_of(job, self.object_of(job))))

    # --- jobs -------------------------------------------------------------------------------------------------------

    def add(self, job: OwnedJob) -> OwnedJob:
        """Add a job; it replaces one for the same object."""
        self.jobs[job.id] = job
        self._by_object[_object_key(job.kind.resource, job.namespace, job.name)] = job
        self._by_pods[job.pods_key] = job
        return job

    def forget(self, job: OwnedJob) -> None:
        """Remove a job."""
        self.jobs.pop(job.id, None)
        for table, key in (
            (self._by_object, _object_key(job.kind.resource, job.namespace, job.name)),
            (self._by_pods, job.pods_key),
        ):
            if table.get(key) is job:
                del table[key]

    def _new(self, identity: str, kind: JobKind, found: JobObject) -> OwnedJob:
        namespace, name = found.key
        return self.add(OwnedJob(id=identity, kind=kind, namespace=namespace, name=name, uid=found.metadata.uid))

    def arrived(self, key: str, identity: str = "") -> OwnedJob | None:
        """The job of an arrival, by its key; with *identity*, the arrival is that job from now on."""
        kind, namespace, name, uid = parse_key(key)
        found = None if kind is None else self.watches.jobs[kind.resource.path()].cache.get(namespace, name)
        if kind is None or found is None or found.metadata.uid != uid:
            return None
        job = self._by_object.get(_object_key(kind.resource, namespace, name))
        if job is None or job.uid != uid or (identity and job.id not in (key, identity)):
            return self._new(identity or key, kind, found)
        if identity and job.id != identity:
            self.jobs.pop(job.id, None)
            job.id = identity
            self.jobs[identity] = job
        return job

    # --- changes ----------------------------------------------------------------------------------------------------

    def job_changed(self, kind: JobKind, old: JobObject | None, new: JobObject | None) -> None:
        """Take in a change of an object."""
        if not self._is_open:
            return
        found = new or old
        assert found is not None
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._depart(kind, old)
        if new is not None:
            self._observe(kind, new)
        job = self._by_object.get(_object_key(kind.resource, *found.key))
        if job is not None:
            self._changed(job.id)

    def _observe(self, kind: JobKind, found: JobObject) -> None:
        match owner_of(kind, found, self._store):
            case Owner.OURS | Owner.ARRIVED:
                if found.metadata.labels.get(names.MANAGED_BY) != "levada":
                    self._arrive(kind, found)
            case Owner.RUNS:
                self._show_running(kind, found)
            case Owner.OTHERS:
                if key_of(kind, found) in self._reported:
                    self._depart(kind, found)

    def _arrive(self, kind: JobKind, found: JobObject) -> None:
        arrival = arrival_of(kind, found, self.class_of(kind, found))
        seen = digest(kind, arrival, found)
        if self._reported.get(arrival.key) != seen:
            self._reported[arrival.key] = seen
            self._outbox.arrive(arrival)

    def class_of(self, kind: JobKind, found: JobObject) -> str:
        """The node class of a job."""
        terms = partial(self.watches.volume_terms, found.metadata.namespace)
        return self.inventory.class_of(node_demand(kind.pod_templates(found), terms))

    def _show_running(self, kind: JobKind, found: JobObject) -> None:
        """Tell the user once how to hand over a job that runs."""
        key = key_of(kind, found)
        if key not in self._reported:
            self._reported[key] = b""
            job = self._by_object.get(_object_key(kind.resource, *found.key)) or self._new(key, kind, found)
            job.notice = "AlreadyRunning", HOW_TO_HAND_OVER

    def _depart(self, kind: JobKind, found: JobObject) -> None:
        key = key_of(kind, found)
        job = self._by_object.get(_object_key(kind.resource, *found.key))
        if self._reported.pop(key, None):
            self._outbox.depart(key)
        elif job is not None and job.uid == found.metadata.uid and job.manifest:
            self._outbox.depart(job.id)

    def pod_changed(self, old: PodObject | None, new: PodObject | None) -> None:
        """Take in a change of a pod."""
        for pod in (old, new):
            job = self.job_of(pod) if pod is not None else None
            if job is not None:
                self._changed(job.id)


def _object_key(resource: Resource, namespace: str, name: str) -> tuple[str, str, str]:
    return resource.path(), namespace, name
