"""Levada's own jobs as objects of a cluster, with labels and annotations."""

from __future__ import annotations

from levada.jobfile.kubeflow import Draft
from levada.jobfile.manifest import ManifestValue
from levada.jobfile.model import API_VERSION, Job

VERSIONS = (API_VERSION,)


def convert(manifest: ManifestValue) -> tuple[Job, Draft]:
    """The job, and its draft; raises BadInput with all faults."""
    draft = Draft(manifest)
    draft.metadata()
    workers, labels = draft.spec.at("workers").value, draft.spec.at("labels").mapping()
    if labels:
        draft.put("spec.labels", {**manifest.at("metadata", "labels").mapping(), **labels})
    if draft.has_range:
        given = workers if isinstance(workers, dict) else {"min": 1 if workers is None else workers}
        least = given.get("min", 1)
        draft.put("spec.workers", {"min": least, "max": max(least, given.get("desired") or least), **given})
    return draft.job(draft.spec.mapping()), draft
