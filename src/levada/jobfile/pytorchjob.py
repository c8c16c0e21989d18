"""PyTorchJobs of Kubeflow: those that name torchrun by torchrun, others as one process per pod."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from levada.jobfile.kubeflow import RUN_POLICY, Draft
from levada.jobfile.manifest import Place
from levada.jobfile.model import Job
from levada.jobfile.pods import Pod

VERSIONS = ("kubeflow.org/v1",)
_FIELDS = ("runPolicy", "elasticPolicy", "pytorchReplicaSpecs", "nprocPerNode", *RUN_POLICY)
_ELASTIC = (
    "minReplicas", "maxReplicas", "rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf", "standalone",
    "nProcPerNode", "maxRestarts", "metrics",
)  # fmt: skip
CONTAINER = "pytorch"
#: Options of torchrun without a value; all others have one.
_FLAGS = ("standalone", "module", "m", "no-python", "run-path", "use-agent-store")
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")


def convert(manifest: Place) -> tuple[Job, Draft]:
    """A PyTorchJob as a job of ours, and the draft it was made from; raises BadInput with all faults."""
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
    # Every pod is a worker to us, and its master is the first of them.
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
    pod = Pod((worker if worker.given else master).at("template"), CONTAINER)
    draft.put("spec.gpusPerWorker", pod.gpus() or 0, pod.main)
    draft.takes(pod)
    script = script_of(pod.command())
    if script is None and any("torchrun" in word or _LAUNCHERS[0] in word for word in pod.command()):
        draft.needs_cluster = f"{pod.main.path}.command: name torchrun as the program, not inside a shell"
    if _processes(draft, pod) > 1:
        draft.needs_cluster = "a pod of it has several processes; here ask for more workers with one GPU each"
    draft.runs(pod, "torchrun" if script is not None else "plain", script)
    group = worker if worker.given else master
    draft.common(group, group)
    if elastic.at("maxRestarts").given:
        draft.put("spec.retries", elastic.at("maxRestarts").whole(), elastic.at("maxRestarts"))
    return draft.job(), draft


def _processes(draft: Draft, pod: Pod) -> int:
    """How many processes torchrun starts in each pod, as far as that is said."""
    said = draft.spec.at("elasticPolicy", "nProcPerNode")
    said = said if said.given else draft.spec.at("nprocPerNode")
    word = str(said.value) if said.given else _option(pod.command(), "nproc-per-node")
    if word in ("auto", "gpu"):
        return pod.gpus() or 1
    return int(word) if word is not None and word.isdecimal() and len(word) < 10 else 1


def _option(command: Sequence[str], name: str) -> str | None:
    """The value of an option of torchrun."""
    for word, following in itertools.pairwise([*command, ""]):
        given, separator, value = word.lstrip("-").partition("=")
        if word.startswith("--") and given.replace("_", "-") == name:
            return value if separator else following
    return None


def script_of(command: Sequence[str]) -> list[str] | None:
    """What torchrun is asked to run, without torchrun itself and its options; None where it is not torchrun."""
    words = list(command)
    if not words:
        return None
    python = "python"
    program = words[0].rsplit("/", 1)[-1]
    if program == "torchrun":
        rest = words[1:]
    elif program.startswith("python") and words[1:2] == ["-m"] and words[2:3] and words[2] in _LAUNCHERS:
        python, rest = words[0], words[3:]
    else:
        return None
    flags = set()
    while rest and rest[0].startswith("-"):
        name, separator, _ = rest[0].lstrip("-").partition("=")
        name = name.replace("_", "-")
        flags.add(name)
        rest = rest[1 if separator or name in _FLAGS else 2 :]
    if not rest:
        return None
    if flags & {"no-python"}:
        return rest
    return [python, "-m", *rest] if flags & {"module", "m"} else [python, *rest]
