"""Pods and Deployments that answer requests: they are nobody's training, and training makes room for them."""

from __future__ import annotations

from levada.jobfile.document import Serving
from levada.jobfile.manifest import Place

#: The annotations that say so, ours first.
ANNOTATIONS = ("levada.dev/serving", "SERVING_POD")
#: The guide to SERVING_POD writes apps/v1 for pods, too.
VERSIONS = {"Pod": ("v1", "apps/v1"), "Deployment": ("apps/v1",)}


def read(manifest: Place) -> Serving:
    """What *manifest* serves with; faults are written down in it."""
    is_deployment = manifest.at("kind").value == "Deployment"
    notes = manifest.at("metadata", "annotations")
    if is_deployment:
        notes = manifest.at("spec", "template", "metadata", "annotations")
    if not any(notes.at(name).is_true() for name in ANNOTATIONS):
        kind = "Deployment" if is_deployment else "Pod"
        notes.fault(f'a {kind} is taken only where it serves: annotate it {ANNOTATIONS[0]}: "true"')
    if not manifest.at("metadata", "name").text():
        manifest.at("metadata", "name").fault("is required")
    replicas = manifest.at("spec", "replicas").whole() if is_deployment else 1
    return Serving(replicas=1 if replicas is None else replicas)
