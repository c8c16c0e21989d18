"""MPIJob v2beta1: Worker.replicas is the size.

The launcher counts as a server and has a place, too.
"""

from __future__ import annotations

from levada.backends.kubernetes import names
from levada.backends.kubernetes.client import Resource
from levada.backends.kubernetes.kinds.kind import SERVER, WORKER, JobKind, index_label
from levada.backends.kubernetes.objects import JobObject, PodObject

_LABEL = "training.kubeflow.org/"


class MPIJob(JobKind):
    """An MPIJob of Kubeflow. Elastic Horovod reads the hosts from a script that the operator keeps current."""

    resource = Resource(kind="MPIJob", plural="mpijobs", version="v2beta1", group="kubeflow.org")
    pods_of = "MPIJob"
    owners = ("Job",)
    suspend = ("runPolicy", "suspend")
    sizes = (("mpiReplicaSpecs", "Worker", "replicas"),)
    templates = (("mpiReplicaSpecs", "Worker", "template"), ("mpiReplicaSpecs", "Launcher", "template"))

    def job_of(self, pod: PodObject) -> str | None:
        """The MPIJob that made the pod."""
        labels = pod.metadata.labels
        return labels.get(_LABEL + "job-name") if labels.get(_LABEL + "operator-name") == "mpi-operator" else None

    def place_of(self, job: JobObject, pod: PodObject) -> tuple[str, int | None]:
        """A worker with its index, or the launcher."""
        if pod.metadata.labels.get(_LABEL + "job-role") == "launcher":
            return SERVER, 0
        return WORKER, index_label(pod, _LABEL + "replica-index")

    def servers(self, job: JobObject) -> int:
        """The launcher."""
        return 1

    def is_elastic(self, job: JobObject) -> bool:
        """Whether the launcher runs elastic Horovod, or its user declared a range."""
        notes = job.metadata.annotations
        if names.MIN_WORKERS in notes or names.MAX_WORKERS in notes:
            return True
        containers = [
            container
            for template in self.pod_templates(job)[1:]
            for container in (template.get("spec") or {}).get("containers") or ()
        ]
        words = [word for each in containers for word in (*(each.get("command") or ()), *(each.get("args") or ()))]
        return any("horovodrun" in str(word) for word in words)
