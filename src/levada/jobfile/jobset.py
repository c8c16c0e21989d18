"""JobSets: all pods of their Jobs are workers; the size is fixed."""

from __future__ import annotations

from levada.jobfile.kubeflow import Draft
from levada.jobfile.manifest import ManifestValue
from levada.jobfile.model import Job
from levada.jobfile.pods import PodTemplate

VERSIONS = ("jobset.x-k8s.io/v1alpha2",)
_FIELDS = (
    "replicatedJobs", "network", "successPolicy", "failurePolicy", "startupPolicy", "suspend", "coordinator",
    "managedBy", "ttlSecondsAfterFinished", "volumeClaimPolicies",
)  # fmt: skip


def convert(manifest: ManifestValue) -> tuple[Job, Draft]:
    """A JobSet as a Levada job, and its draft; raises BadInput with all faults."""
    draft = Draft(manifest)
    draft.spec.only(_FIELDS)
    draft.needs_cluster = "its pods are made by the JobSet controller"
    draft.fixed = "the size of a JobSet is fixed"
    jobs = list(draft.spec.at("replicatedJobs").items())
    if not jobs:
        draft.spec.at("replicatedJobs").fault("must have at least 1 item")
        return draft.job(), draft
    workers, pods = 0, []
    for job in jobs:
        job.only(("name", "replicas", "template", "dependsOn", "groupName"))
        inner = job.at("template", "spec")
        workers += (job.at("replicas").whole(1) or 1) * (inner.at("parallelism").whole(1) or 1)
        pods.append(PodTemplate(inner.at("template")))
    draft.put("spec.workers", {"min": workers, "max": workers}, draft.spec.at("replicatedJobs"))
    # The engine knows one size of worker: the largest.
    first = max(pods, key=lambda pod: pod.gpus() or 0)
    draft.put("spec.gpusPerWorker", first.gpus() or 0, first.main)
    draft.takes(first, *(pod for pod in pods if pod is not first))
    draft.metadata()
    draft.put("spec.ttl", draft.spec.at("ttlSecondsAfterFinished").whole(), draft.spec.at("ttlSecondsAfterFinished"))
    draft.stops_in(first)
    return draft.job(), draft
