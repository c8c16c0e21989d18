"""batch/v1 Jobs: all pods run at the same time; indexed ones may be elastic."""

from __future__ import annotations

from levada.jobfile.kubeflow import Draft
from levada.jobfile.manifest import ManifestValue
from levada.jobfile.model import Job
from levada.jobfile.pods import PodTemplate

VERSIONS = ("batch/v1",)
_FIELDS = (
    "parallelism", "completions", "completionMode", "activeDeadlineSeconds", "podFailurePolicy", "successPolicy",
    "backoffLimit", "backoffLimitPerIndex", "maxFailedIndexes", "selector", "manualSelector", "template",
    "ttlSecondsAfterFinished", "suspend", "podReplacementPolicy", "managedBy",
)  # fmt: skip


def convert(manifest: ManifestValue) -> tuple[Job, Draft]:
    """A Job of Kubernetes as a Levada job, and its draft; raises BadInput with all faults."""
    draft = Draft(manifest)
    draft.spec.only(_FIELDS)
    draft.needs_cluster = "its pods are made by a controller of Kubernetes"
    size, completions = draft.spec.at("parallelism"), draft.spec.at("completions")
    workers, is_indexed = size.whole(1) or 1, draft.spec.at("completionMode").value == "Indexed"
    draft.put("spec.workers", {"min": workers, "max": workers}, size)
    if is_indexed and completions.whole(1) not in (None, workers):
        completions.fault(f"must be parallelism ({workers}): all workers of a training job run at the same time")
    draft.fixed = "" if is_indexed else "only a Job with completionMode Indexed can change its size"
    draft.elastic = is_indexed and draft.has_range
    if not draft.spec.at("template").given:
        draft.spec.at("template").fault("is required")
        return draft.job(), draft
    pod = PodTemplate(draft.spec.at("template"))
    draft.put("spec.gpusPerWorker", pod.gpus() or 0, pod.main)
    draft.takes(pod)
    draft.common(draft.spec, draft.spec)
    return draft.job(), draft
