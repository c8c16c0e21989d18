"""batch/v1 Job: indexed jobs resize by parallelism = completions.

Others have a fixed size.
"""

from __future__ import annotations

from levada.backends.kubernetes import names
from levada.backends.kubernetes.client import Resource
from levada.backends.kubernetes.kinds.kind import WORKER, JobKind, index_label
from levada.backends.kubernetes.objects import JobObject, PodObject

JOB_NAME = "batch.kubernetes.io/job-name"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


class BatchJob(JobKind):
    """A Job of Kubernetes. It is elastic if its user declares a range, and all indices run at the same time."""

    resource = Resource(kind="Job", plural="jobs", version="v1", group="batch")
    pods_of = "Job"
    sizes = (("parallelism",), ("completions",))
    templates = (("template",),)
    succeeded = "Complete"

    def job_of(self, pod: PodObject) -> str | None:
        """The Job that made the pod."""
        return pod.metadata.labels.get(JOB_NAME)

    def place_of(self, job: JobObject, pod: PodObject) -> tuple[str, int | None]:
        """A worker with its completion index."""
        return WORKER, index_label(pod, COMPLETION_INDEX)

    def planned(self, job: JobObject, size: int, *, suspend: bool) -> dict[str, object]:
        """Completions of a job without indices are its amount of work, which Levada does not change."""
        spec = dict(super().planned(job, size, suspend=suspend))
        if job.spec.get("completionMode") != "Indexed":
            spec.pop("completions", None)
            if "completions" in job.spec:
                spec["completions"] = job.spec["completions"]
        return spec

    def may_move(self, job: JobObject, workers: int) -> bool:
        """A deleted pod counts as a failure: half of the retries are left to the job itself."""
        failed = int((job.status or {}).get("failed") or 0)
        return failed + workers <= int(job.spec.get("backoffLimit", 6)) // 2

    def is_elastic(self, job: JobObject) -> bool:
        """Whether it is indexed, and its user declared a range."""
        notes = job.metadata.annotations
        return job.spec.get("completionMode") == "Indexed" and (
            names.MIN_WORKERS in notes or names.MAX_WORKERS in notes
        )
