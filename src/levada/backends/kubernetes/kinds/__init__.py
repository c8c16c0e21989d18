"""Adapters: one class per kind of job, all with the interface of `JobKind`."""

from __future__ import annotations

from levada.backends.kubernetes.kinds.batch_job import BatchJob
from levada.backends.kubernetes.kinds.jobset import JobSet, TrainJob
from levada.backends.kubernetes.kinds.kind import Ending, JobKind, WorkerRange
from levada.backends.kubernetes.kinds.levada_job import LevadaJob
from levada.backends.kubernetes.kinds.mpijob import MPIJob
from levada.backends.kubernetes.kinds.pod import SinglePod
from levada.backends.kubernetes.kinds.pytorchjob import PyTorchJob
from levada.backends.kubernetes.objects import PodObject

#: In the order in which they are asked for a pod: pods of operators may also carry the labels of a batch Job.
KINDS: tuple[JobKind, ...] = (
    MPIJob(),
    PyTorchJob(),
    TrainJob(),
    JobSet(),
    BatchJob(),
    LevadaJob(),
    SinglePod(),
)


def kind_of(api_version: str, kind: str) -> JobKind | None:
    """The adapter for objects of a kind; None if there is none."""
    wanted = api_version, kind
    return next((each for each in KINDS if (each.resource.api_version, each.resource.kind) == wanted), None)


def group_of(pod: PodObject) -> tuple[str, str, str] | None:
    """The group of pods that a pod belongs to, as (`JobKind.pods_of`, namespace, name); None if it has none."""
    for kind in KINDS:
        name = kind.job_of(pod)
        if name:
            return kind.pods_of, pod.metadata.namespace, name
    return None


__all__ = ["KINDS", "Ending", "JobKind", "WorkerRange", "group_of", "kind_of"]
