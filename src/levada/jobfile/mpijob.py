"""Kubeflow MPIJobs (v1, v2beta1): Horovod or another launcher, Voda's variables."""

from __future__ import annotations

from levada.jobfile.kubeflow import RUN_POLICY, Draft
from levada.jobfile.manifest import ManifestValue
from levada.jobfile.model import Job
from levada.jobfile.pods import PodTemplate

VERSIONS = ("kubeflow.org/v1", "kubeflow.org/v2beta1")
_FIELDS = (
    "slotsPerWorker", "runLauncherAsWorker", "runPolicy", "mpiReplicaSpecs", "sshAuthMountPath",
    "launcherCreationPolicy", "mpiImplementation", "mainContainer", *RUN_POLICY,
)  # fmt: skip


def convert(manifest: ManifestValue) -> tuple[Job, Draft]:
    """An MPIJob as a Levada job, and its draft; raises BadInput with all faults."""
    draft = Draft(manifest)
    draft.spec.only(_FIELDS)
    groups = draft.spec.at("mpiReplicaSpecs")
    if not groups.given:
        groups.fault("is required")
        return draft.job(), draft
    for name in groups.mapping():
        if str(name).lower() not in ("launcher", "worker"):
            groups.at(name).fault("unknown group; an MPIJob has Launcher and Worker")
    launcher, worker = draft.group(groups, "Launcher"), draft.group(groups, "Worker")
    if worker.given:
        pod = PodTemplate(worker.at("template"))
        gpus = pod.gpus()
        # As in Voda, a worker has one GPU by default.
        draft.put("spec.gpusPerWorker", 1 if gpus is None else gpus, pod.main)
        draft.takes(pod)
        draft.common(worker, launcher)
    else:
        worker.fault("is required")
    if launcher.given:
        pod = PodTemplate(launcher.at("template"))
        _workers(draft, pod, worker)
        # Without horovodrun, it is unknown whether the program can be resized.
        is_horovod = any("horovodrun" in word for word in pod.command())
        draft.runs(pod, "horovod" if is_horovod else "mpi")
        draft.elastic = is_horovod or draft.has_range
        draft.launcher = pod.cpu(), pod.memory()
    else:
        launcher.fault("is required")
    return draft.job(), draft


def _workers(draft: Draft, launcher: PodTemplate, worker: ManifestValue) -> None:
    """The range of workers from the launcher's variables, which count processes."""
    env = launcher.env()

    def variable(*names: str, least: int = 1) -> tuple[int | None, ManifestValue]:
        values = [env[name] for name in names if name in env]
        if len(values) > 1:
            values[1].fault(f"is a synonym of {names[0]}; use only one")
        place = values[0] if values else worker.at("replicas")
        return (place.whole(least) if values else None), place

    slots = draft.spec.at("slotsPerWorker").whole(least=1) or 1
    asked, asked_place = variable("NUM_PROC", "NP", least=0)
    least, least_place = variable("MIN_NUM_PROC", "MIN_NP")
    most, most_place = variable("MAX_NUM_PROC", "MAX_NP")
    for value, place in ((asked, asked_place), (least, least_place), (most, most_place)):
        if value is not None and value % slots:
            place.fault(f"must be a multiple of slotsPerWorker ({slots})")
    replicas = worker.at("replicas").whole(least=1) or 1
    if asked is None and least is None and most is None:
        draft.put("spec.workers", {"min": replicas, "max": replicas}, worker.at("replicas"))
    else:
        # The default minimum is the requested number; 0 means not requested.
        low = least // slots if least is not None else (asked or slots) // slots
        want = asked // slots if asked else low
        high = most // slots if most is not None else max(low, want)
        draft.put("spec.workers", {"min": low, "max": high, "desired": want})
        for field, place in (("min", least_place), ("max", most_place), ("desired", asked_place)):
            draft.put(f"spec.workers.{field}", None, place)
    epochs, place = variable("EPOCHS")
    draft.put("spec.epochs", epochs, place)
    if "JOB_PRIORITY" in env:
        # In Voda, 0 is the highest priority.
        rank = env["JOB_PRIORITY"].whole(least=-(10**9))
        draft.put("spec.priority", None if rank is None else -rank, env["JOB_PRIORITY"])
