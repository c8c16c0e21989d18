"""TFJobs of Kubeflow and DRAGON: parameter servers and elastic workers."""

from __future__ import annotations

from levada.jobfile.kubeflow import RUN_POLICY, Draft
from levada.jobfile.manifest import ManifestValue
from levada.jobfile.model import Job
from levada.jobfile.pods import PodTemplate

VERSIONS = ("kubeflow.org/v1",)
_FIELDS = (
    "min-instances", "minInstances", "max-instances", "maxInstances", "runPolicy", "tfReplicaSpecs", "successPolicy",
    "enableDynamicWorker", *RUN_POLICY,
)  # fmt: skip
#: The container whose exit code decides.
CONTAINER = "tensorflow"
#: Tags for GPU sharing, and their annotations.
_TAGS = {"affinity": "sched_affinity", "anti_affinity": "sched_anti-affinity", "exclusion": "sched_exclusion"}


def convert(manifest: ManifestValue) -> tuple[Job, Draft]:
    """A TFJob as a Levada job, and its draft; raises BadInput with all faults."""
    draft = Draft(manifest)
    draft.spec.only(_FIELDS)
    groups = draft.spec.at("tfReplicaSpecs")
    for name in groups.mapping():
        if str(name).lower() in ("chief", "master", "evaluator"):
            groups.at(name).fault("not supported; make it worker 0 (the chief) or a separate job")
        elif str(name).lower() not in ("ps", "worker"):
            groups.at(name).fault("unknown group; a TFJob has PS and Worker")
    worker, server = draft.group(groups, "Worker"), draft.group(groups, "PS")
    _workers(draft, worker)
    if not worker.given:
        worker.fault("is required")
        return draft.job(), draft
    pod = _pod(worker)
    _gpus(draft, pod)
    draft.takes(pod)
    draft.runs(pod, "tensorflow")
    if server.given:
        _servers(draft, server, pod)
    draft.common(worker, worker)
    return draft.job(), draft


def _pod(group: ManifestValue) -> PodTemplate:
    """The pod template of a group; its main container is `tensorflow`."""
    pod = PodTemplate(group.at("template"), CONTAINER)
    if pod.main.given and pod.main.at("name").value != CONTAINER:
        pod.spec.at("containers").fault(f"must have one named {CONTAINER}")
    return pod


def tags(manifest: ManifestValue) -> dict[str, str]:
    """The GPU sharing tags in the annotations of its workers."""
    worker = Draft(manifest).group(manifest.at("spec", "tfReplicaSpecs"), "Worker")
    notes = worker.at("template", "metadata", "annotations")
    values = {name: notes.at(f"kubeshare/{note}").text() for name, note in _TAGS.items()}
    return {name: text for name, text in values.items() if text is not None}


def _workers(draft: Draft, worker: ManifestValue) -> None:
    least = draft.spec.first_of("min-instances", "minInstances")
    most = draft.spec.first_of("max-instances", "maxInstances")
    low, high, asked = least.whole(1), most.whole(1), worker.at("replicas").whole(1)
    if low is None:
        # A plain Kubeflow TFJob has no range, but one size.
        low = min(value for value in (asked or 1, high) if value is not None)
    if high is None:
        high = max(low, asked or 1)
    draft.put("spec.workers", {"min": low, "max": high, "desired": asked or low})
    for field, place in (("min", least), ("max", most), ("desired", worker.at("replicas"))):
        draft.put(f"spec.workers.{field}", None, place)


def _gpus(draft: Draft, pod: PodTemplate) -> None:
    """Whole GPUs from the limits, or a fraction from KubeShare's annotations."""
    notes = pod.template.at("metadata", "annotations")
    request, limit, memory = (notes.at(f"kubeshare/gpu_{name}") for name in ("request", "limit", "mem"))
    shares = draft.manifest.at("metadata", "annotations", "DRAGON_KUBESHARE").is_true()
    whole = pod.gpus()
    for place in (limit, memory):
        if place.given and not request.given:
            place.fault("requires kubeshare/gpu_request: the fraction of a GPU, e.g. 0.5")
    if not shares and (whole is not None or not request.given):
        draft.put("spec.gpusPerWorker", whole or 0, pod.main)
        return
    part, most = request.number() or 0.0, limit.number()
    if not 0 <= part <= 1:
        request.fault("must be a fraction of one GPU: 0 to 1")
    elif most is not None and not part <= most <= 1:
        limit.fault(f"must be between gpu_request ({part:g}) and 1")
    # Round up to 0.001, as DRAGON does.
    draft.put("spec.gpusPerWorker", _thousandths_up(part), request)
    if memory.given:
        draft.put("spec.gpuMemory", f"{memory.memory()}Mi", memory)
    elif 0 < part < 1:
        memory.fault("is required with gpu_request: bytes of GPU memory")


def _thousandths_up(part: float) -> float:
    from decimal import ROUND_CEILING, Decimal

    return float(Decimal(repr(part)).quantize(Decimal("0.001"), rounding=ROUND_CEILING))


def _servers(draft: Draft, server: ManifestValue, worker: PodTemplate) -> None:
    pod = _pod(server)
    replicas = server.at("replicas").whole(1) or 1
    group = {"replicas": replicas, "cpu": pod.cpu() / 1000, "memory": f"{pod.memory()}Mi"}
    command, env = pod.command(), pod.plain_env()
    if not command:
        draft.needs_cluster = f"{pod.main.path}.command is missing; only the container image defines it"
    if unresolved := pod.unresolved_env():
        draft.needs_cluster = unresolved
    if command and command != worker.command():
        group["command"] = command
    if env:
        group["env"] = env
    draft.put("spec.parameterServers", group, server)
