"""PyTorchJob v1: elastic without a master.

With a master, worker i has ordinal i + 1 and the size is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levada.backends.kubernetes.client import Resource
from levada.backends.kubernetes.kinds.kind import WORKER, JobKind, index_label
from levada.backends.kubernetes.objects import JobObject, PodObject

_LABEL = "training.kubeflow.org/"


class PyTorchJob(JobKind):
    """A PyTorchJob of Kubeflow's training-operator. Replicas 0 is refused by its webhook: a stop suspends."""

    resource = Resource(kind="PyTorchJob", plural="pytorchjobs", version="v1", group="kubeflow.org")
    pods_of = "PyTorchJob"
    suspend = ("runPolicy", "suspend")
    sizes = (("pytorchReplicaSpecs", "Worker", "replicas"),)
    templates = (("pytorchReplicaSpecs", "Worker", "template"), ("pytorchReplicaSpecs", "Master", "template"))

    def job_of(self, pod: PodObject) -> str | None:
        """The PyTorchJob that made the pod."""
        labels = pod.metadata.labels
        owner = labels.get(_LABEL + "operator-name")
        return labels.get(_LABEL + "job-name") if owner == "pytorchjob-controller" else None

    def place_of(self, job: JobObject, pod: PodObject) -> tuple[str, int | None]:
        """A worker; the master, if there is one, is the first."""
        index = index_label(pod, _LABEL + "replica-index")
        is_master = pod.metadata.labels.get(_LABEL + "replica-type") == "master"
        return WORKER, index if index is None or is_master else index + self._masters(job)

    def size(self, job: JobObject) -> int:
        """Workers and master."""
        return sum(int(group.get("replicas", 1)) for group in self._groups(job).values())

    def planned(self, job: JobObject, size: int, *, suspend: bool) -> Mapping[str, Any]:
        """The master is one of the workers; a job of a master alone gets no worker group."""
        spec = super().planned(job, size - self._masters(job), suspend=suspend)
        groups = {name: group for name, group in spec["pytorchReplicaSpecs"].items() if name in self._groups(job)}
        return {**spec, "pytorchReplicaSpecs": groups}

    def _groups(self, job: JobObject) -> Mapping[str, Any]:
        return job.spec.get("pytorchReplicaSpecs") or {}

    def _masters(self, job: JobObject) -> int:
        return 1 if "Master" in self._groups(job) else 0

    def is_elastic(self, job: JobObject) -> bool:
        """Whether torchrun finds its peers by rendezvous."""
        return bool(job.spec.get("elasticPolicy")) and not self._masters(job)
