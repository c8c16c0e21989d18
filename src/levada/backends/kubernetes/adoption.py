"""Adoption: which objects of users belong to Levada.

Pure functions. Levada never writes objects that do not belong to it.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from levada.backends.kubernetes import names
from levada.backends.kubernetes.kinds import KINDS, JobKind
from levada.backends.kubernetes.objects import JobObject, unix_time
from levada.backends.kubernetes.stamp import stamp_of
from levada.backends.protocol import Arrival

#: `managedBy` of the operators themselves.
_OPERATORS = frozenset(
    (
        "kubernetes.io/job-controller",
        "kubeflow.org/mpi-operator",
        "kubeflow.org/training-operator",
        "jobset.sigs.k8s.io/jobset-controller",
        "trainer.kubeflow.org/trainjob-controller",
    )
)
HOW_TO_HAND_OVER = (
    "The job already runs, so Levada counts its pods as used by others. To hand it over, suspend it; Levada resumes it."
)


class Owner(Enum):
    """Whose an object is."""

    #: It carries the stamp of this store.
    OURS = "ours"
    #: It waits for Levada.
    ARRIVED = "arrived"
    #: Its user handed it over while it runs: its pods are foreign use.
    RUNS = "runs"
    OTHERS = "others"


def owner_of(kind: JobKind, job: JobObject, store: str) -> Owner:
    """Whose an object is."""
    meta = job.metadata
    if names.QUEUE not in meta.labels or names.KUEUE_QUEUE in meta.labels or meta.controller is not None:
        return Owner.OTHERS
    managers = {job.spec.get("managedBy"), (job.spec.get("runPolicy") or {}).get("managedBy")}
    if managers - _OPERATORS - {None}:
        return Owner.OTHERS
    stamp = stamp_of(meta.annotations)
    if stamp is not None and stamp.store == store:
        return Owner.OURS
    if kind.ending(job, ()) is not None or meta.deletion_timestamp is not None:
        return Owner.OTHERS
    return Owner.ARRIVED if kind.is_suspended(job) or (kind.makes_pods and stamp is None) else Owner.RUNS


def key_of(kind: JobKind, job: JobObject) -> str:
    """The key of an object: an object that is created again with its name has another one."""
    return make_key(kind, *job.key, job.metadata.uid)


def make_key(kind: JobKind, namespace: str, name: str, uid: str) -> str:
    """The key of the object with this uid, also if it no longer exists."""
    return "/".join((f"{kind.resource.plural}.{kind.resource.group or 'core'}", namespace, name, uid))


def parse_key(key: str) -> tuple[JobKind | None, str, str, str]:
    """Kind, namespace, name and uid of a key."""
    _, namespace, name, uid = key.split("/")
    return next((kind for kind in KINDS if make_key(kind, namespace, name, uid) == key), None), namespace, name, uid


def arrival_of(kind: JobKind, job: JobObject, node_class: str) -> Arrival:
    """The current state of an object, without what Levada wrote."""
    meta = job.metadata
    document: dict[str, Any] = {
        "apiVersion": job.api_version or kind.resource.api_version,
        "kind": job.kind or kind.resource.kind,
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "creationTimestamp": meta.creation_timestamp,
            "labels": dict(meta.labels),
            "annotations": {key: value for key, value in meta.annotations.items() if key not in names.WRITTEN},
        },
        "spec": job.spec,
    }
    return Arrival(
        key=key_of(kind, job),
        document=document,
        user=meta.annotations.get(names.USER) or meta.namespace,
        created=unix_time(meta.creation_timestamp),
        node_class=node_class,
    )


def digest(kind: JobKind, arrival: Arrival, job: JobObject) -> bytes:
    """Equal for states that differ only in what Levada owns: size, suspension, gate, annotations."""
    spec = kind.planned(job, 1, suspend=True)
    return msgspec.json.encode((arrival.document["metadata"], spec, arrival.node_class), order="deterministic")
