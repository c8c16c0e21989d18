"""TrainJobs of Kubeflow Trainer: its nodes are workers; the size is fixed."""

from __future__ import annotations

from collections.abc import Iterator

from levada.jobfile.kubeflow import Draft
from levada.jobfile.manifest import ManifestValue
from levada.jobfile.model import Job
from levada.jobfile.pods import PodTemplate

VERSIONS = ("trainer.kubeflow.org/v1alpha1",)
_FIELDS = (
    "runtimeRef", "initializer", "trainer", "labels", "annotations", "podTemplateOverrides", "runtimePatches",
    "suspend", "managedBy", "activeDeadlineSeconds", "ttlSecondsAfterFinished",
)  # fmt: skip


def convert(manifest: ManifestValue) -> tuple[Job, Draft]:
    """A TrainJob as a Levada job, and its draft; raises BadInput with all faults."""
    draft = Draft(manifest)
    draft.spec.only(_FIELDS)
    draft.needs_cluster = "its pods are made by Kubeflow Trainer"
    draft.fixed = "the size of a TrainJob is fixed"
    trainer = draft.spec.at("trainer")
    nodes, resources = trainer.at("numNodes"), trainer.at("resourcesPerNode")
    workers = nodes.whole(1) or 1
    draft.put("spec.workers", {"min": workers, "max": workers}, nodes)
    if not draft.spec.at("runtimeRef", "name").text():
        draft.spec.at("runtimeRef", "name").fault("is required")
    if not resources.given:
        resources.fault("is required: Levada does not read the runtime, and must know the GPUs of a node")
    pod = PodTemplate(_pod(draft, resources))
    draft.put("spec.gpusPerWorker", pod.gpus() or 0, resources)
    draft.takes(pod)
    draft.metadata()
    for field, name in (("timeLimit", "activeDeadlineSeconds"), ("ttl", "ttlSecondsAfterFinished")):
        draft.put(f"spec.{field}", draft.spec.at(name).whole(), draft.spec.at(name))
    draft.stops_in(pod)
    return draft.job(), draft


def _pod(draft: Draft, resources: ManifestValue) -> ManifestValue:
    """What is known of the pods: the resources of the trainer, and what overrides the runtime."""
    spec: dict[str, object] = {"containers": [{"name": "node", "resources": resources.value or {}}]}
    for override in _overrides(draft.spec):
        spec |= {name: value for name, value in override.mapping().items() if name != "containers"}
    return ManifestValue({"spec": spec}, ("spec", "trainer"), draft.manifest.faults)


def _overrides(spec: ManifestValue) -> Iterator[ManifestValue]:
    """The pod specs in `podTemplateOverrides` and `runtimePatches`."""
    for override in spec.at("podTemplateOverrides").items():
        yield override.at("spec")
    for patch in spec.at("runtimePatches").items():
        for job in patch.at("trainingRuntimeSpec", "template", "spec", "replicatedJobs").items():
            yield job.at("template", "spec", "template", "spec")
