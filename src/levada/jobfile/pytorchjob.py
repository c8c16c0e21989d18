"""Kubeflow PyTorchJobs: through torchrun, or as one process per pod."""

from __future__ import annotations

from collections.abc import Sequence

from levada.jobfile import torchrun
from levada.jobfile.kubeflow import RUN_POLICY, Draft
from levada.jobfile.manifest import ManifestValue
from levada.jobfile.model import Job
from levada.jobfile.pods import PodTemplate

VERSIONS = ("kubeflow.org/v1",)
_FIELDS = ("runPolicy", "elasticPolicy", "pytorchReplicaSpecs", "nprocPerNode", *RUN_POLICY)
_ELASTIC = (
    "minReplicas", "maxReplicas", "rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf", "standalone",
    "nProcPerNode", "maxRestarts", "metrics",
)  # fmt: skip
CONTAINER = "pytorch"


def convert(manifest: ManifestValue) -> tuple[Job, Draft]:
    """A PyTorchJob as a Levada job, and its draft; raises BadInput with all faults."""
    draft = Draft(manifest)
    draft.spec.only(_FIELDS)
    groups = draft.spec.at("pytorchReplicaSpecs")
    for name in groups.mapping():
        if str(name).lower() not in ("master", "worker"):
            groups.at(name).fault("unknown group; a PyTorchJob has Master and Worker")
    master, worker = draft.group(groups, "Master"), draft.group(groups, "Worker")
    if (master.at("replicas").whole(1) or 1) > 1:
        master.at("replicas").fault("must be 1")
    elastic = draft.spec.at("elasticPolicy")
    elastic.only(_ELASTIC)
    draft.elastic = elastic.given and not master.given
    # Every pod is a worker; the master is the first one.
    size = (1 if master.given else 0) + ((worker.at("replicas").whole(1) or 1) if worker.given else 0)
    sizes = worker.at("replicas") if worker.given else master
    least, most = elastic.at("minReplicas"), elastic.at("maxReplicas")
    low = (least.whole(1) or 1) if elastic.given else size
    high = (most.whole(1) or max(low, size)) if elastic.given else size
    draft.put("spec.workers", {"min": low, "max": high, "desired": size})
    for field, place in (("min", least), ("max", most), ("desired", sizes)):
        draft.put(f"spec.workers.{field}", None, place if elastic.given else sizes)
    if not master.given and not worker.given:
        groups.fault("must have Worker or Master")
        return draft.job(), draft
    pod = PodTemplate((worker if worker.given else master).at("template"), CONTAINER)
    draft.put("spec.gpusPerWorker", pod.gpus() or 0, pod.main)
    draft.takes(pod)
    script = script_of(pod.command())
    if script is None and any("torchrun" in word or "torch.distributed.run" in word for word in pod.command()):
        draft.needs_cluster = f"{pod.main.path}.command: name torchrun as the program, not inside a shell"
    if _processes(draft, pod) > 1:
        draft.needs_cluster = "a pod has several processes; use more workers with one GPU each"
    draft.runs(pod, "torchrun" if script is not None else "plain", script)
    group = worker if worker.given else master
    draft.common(group, group)
    if elastic.at("maxRestarts").given:
        draft.put("spec.retries", elastic.at("maxRestarts").whole(), elastic.at("maxRestarts"))
    return draft.job(), draft


def _processes(draft: Draft, pod: PodTemplate) -> int:
    """The processes that torchrun starts per pod; 1 if not specified."""
    field = draft.spec.at("elasticPolicy", "nProcPerNode")
    field = field if field.given else draft.spec.at("nprocPerNode")
    launcher = torchrun.read(pod.command())
    word = str(field.value) if field.given else None if launcher is None else launcher.value("nproc-per-node")
    if word in ("auto", "gpu"):
        return pod.gpus() or 1
    return int(word) if word is not None and word.isdecimal() and len(word) < 10 else 1


def script_of(command: Sequence[str]) -> list[str] | None:
    """The command that torchrun runs; None if the program is not torchrun."""
    launcher = torchrun.read(command)
    if launcher is None:
        return None
    if "no-python" in launcher.options:
        return list(launcher.script)
    python = launcher.program[0] if len(launcher.program) > 1 else "python"
    is_module = not launcher.options.keys().isdisjoint(("module", "m"))
    return [python, *(["-m"] if is_module else []), *launcher.script]
