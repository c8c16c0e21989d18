"""Pods with a queue label: jobs of one worker."""

from __future__ import annotations

from levada.jobfile.kubeflow import QUEUE, Draft
from levada.jobfile.manifest import ManifestValue
from levada.jobfile.model import Job
from levada.jobfile.pods import PodTemplate

VERSIONS = ("v1",)


def is_training(manifest: ManifestValue) -> bool:
    """Whether the queue label makes a pod a job."""
    return manifest.at("metadata", "labels", QUEUE).given


def convert(manifest: ManifestValue) -> tuple[Job, Draft]:
    """A Pod as a Levada job, and its draft; raises BadInput with all faults."""
    draft = Draft(manifest)
    draft.needs_cluster = "a pod runs in a cluster"
    draft.fixed = "a pod is one worker"
    draft.put("spec.workers", {"min": 1, "max": 1})
    pod = PodTemplate(manifest)
    draft.put("spec.gpusPerWorker", pod.gpus() or 0, pod.main)
    draft.takes(pod)
    # A pod that is stopped is gone: only its user can allow that.
    draft.put("spec.preemptible", False)
    draft.metadata()
    limit = draft.spec.at("activeDeadlineSeconds")
    draft.put("spec.timeLimit", limit.whole(), limit)
    draft.stops_in(pod)
    return draft.job(), draft
