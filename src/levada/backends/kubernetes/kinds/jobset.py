"""JobSet v1alpha2 and TrainJob v1alpha1: fixed size, suspend and resume.

The pods of a TrainJob are those of its JobSet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from levada.backends.kubernetes import names
from levada.backends.kubernetes.client import Resource
from levada.backends.kubernetes.kinds.kind import WORKER, JobKind, Path
from levada.backends.kubernetes.objects import JobObject, PodObject

_JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
#: Levada's entry of `spec.runtimePatches`.
_MANAGER = "levada.dev/scheduler"


class JobSet(JobKind):
    """Several Jobs that start together; each of their pods is a worker."""

    resource = Resource(kind="JobSet", plural="jobsets", version="v1alpha2", group="jobset.x-k8s.io")
    pods_of = "JobSet"
    owners = ("Job",)
    templates: ClassVar[tuple[Path, ...]] = (("replicatedJobs", "*", "template", "spec", "template"),)
    succeeded = "Completed"

    def job_of(self, pod: PodObject) -> str | None:
        """The JobSet that made the pod's Job."""
        return pod.metadata.labels.get(_JOBSET_NAME)

    def place_of(self, job: JobObject, pod: PodObject) -> tuple[str, int | None]:
        """A worker; the size is fixed, so that any place will do."""
        return WORKER, None

    def size(self, job: JobObject) -> int:
        """All pods of all Jobs."""
        return sum(
            int(each.get("replicas", 1)) * int(each["template"]["spec"].get("parallelism", 1))
            for each in job.spec.get("replicatedJobs") or ()
        )


class TrainJob(JobSet):
    """A TrainJob of Kubeflow Trainer: the operator makes a JobSet of the same name."""

    resource = Resource(kind="TrainJob", plural="trainjobs", version="v1alpha1", group="trainer.kubeflow.org")
    templates = ()
    succeeded = "Complete"

    def size(self, job: JobObject) -> int:
        """The nodes of the trainer; one pod each."""
        return int((job.spec.get("trainer") or {}).get("numNodes", 1))

    def planned(self, job: JobObject, size: int, *, suspend: bool) -> Mapping[str, Any]:
        """The gate is a patch of the runtime, which may change only while the job is suspended."""
        spec = super().planned(job, size, suspend=suspend)
        patches = list(spec.get("runtimePatches") or ())
        if not self.is_suspended(job) or any(patch.get("manager") == _MANAGER for patch in patches):
            return spec
        return {**spec, "runtimePatches": [*patches, _gate_patch()]}

    def pod_templates(self, job: JobObject) -> list[Mapping[str, Any]]:
        """What the trainer and its patches say of the pods; the rest is in the runtime."""
        resources = (job.spec.get("trainer") or {}).get("resourcesPerNode") or {}
        spec: dict[str, Any] = {"containers": [{"name": "node", "resources": resources}]}
        for patch in job.spec.get("runtimePatches") or ():
            runtime = patch.get("trainingRuntimeSpec") or {}
            for each in ((runtime.get("template") or {}).get("spec") or {}).get("replicatedJobs") or ():
                spec |= each["template"]["spec"]["template"].get("spec") or {}
        return [{"spec": spec}]


def _gate_patch() -> dict[str, Any]:
    pod = {"template": {"spec": {"schedulingGates": [{"name": names.GATE}]}}}
    replicated = {"name": "node", "template": {"spec": pod}}
    return {
        "manager": _MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
    }
