"""A pod of its own as a job of one worker: it starts once, and a stop deletes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from levada.backends.kubernetes import names
from levada.backends.kubernetes.client import PODS
from levada.backends.kubernetes.kinds.kind import WORKER, Ending, JobKind
from levada.backends.kubernetes.objects import JobObject, PodObject


class SinglePod(JobKind):
    """A pod with the queue label that no controller manages. It waits while it is gated."""

    resource = PODS
    pods_of = "Pod"
    is_pod = True

    def job_of(self, pod: PodObject) -> str | None:
        """The pod itself."""
        return pod.metadata.name if names.QUEUE in pod.metadata.labels and pod.metadata.controller is None else None

    def place_of(self, job: JobObject, pod: PodObject) -> tuple[str, int | None]:
        """The only worker."""
        return WORKER, 0

    def owns(self, job: JobObject, pod: PodObject) -> bool:
        """Whether it is this pod and not a later one of its name."""
        return pod.metadata.uid == job.metadata.uid

    def is_suspended(self, job: JobObject) -> bool:
        """Whether it waits for Levada."""
        return any(gate.get("name") == names.GATE for gate in job.spec.get("schedulingGates") or ())

    def size(self, job: JobObject) -> int:
        """One."""
        return 1

    def planned(self, job: JobObject, size: int, *, suspend: bool) -> Mapping[str, Any]:
        """A pod starts when it is pinned; its spec has no switch."""
        return job.spec

    def ending(self, job: JobObject, pods: Sequence[PodObject]) -> Ending | None:
        """By its phase."""
        status = job.status or {}
        if status.get("phase") not in ("Succeeded", "Failed"):
            return None
        return Ending(succeeded=status["phase"] == "Succeeded", why=status.get("message", ""))

    def pod_templates(self, job: JobObject) -> list[Mapping[str, Any]]:
        """The pod."""
        return [{"spec": job.spec}]
