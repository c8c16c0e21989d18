"""MPIJobs of Kubeflow (v1 and v2beta1): elastic Horovod or any other launcher, with the variables that Voda reads."""

from __future__ import annotations

from levada.jobfile.kubeflow import RUN_POLICY, Draft
from levada.jobfile.manifest import Place
from levada.jobfile.model import Job
from levada.jobfile.pods import Pod

VERSIONS = ("kubeflow.org/v1", "kubeflow.org/v2beta1")
_FIELDS = (
    "slotsPerWorker", "runLauncherAsWorker", "runPolicy", "mpiReplicaSpecs", "sshAuthMountPath",
    "launcherCreationPolicy", "mpiImplementation", "mainContainer", *RUN_POLICY,
)  # fmt: skip


def convert(manifest: Place) -> tuple[Job, Draft]:
    """An MPIJob as a job of ours, and the draft it was made from; raises BadInput with all faults."""
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
        pod = Pod(worker.at("template"))
        gpus = pod.gpus()
        # Voda gives each worker one GPU, whether its template says so or not.
        draft.put("spec.gpusPerWorker", 1 if gpus is None else gpus, pod.main)
        draft.takes(pod)
        draft.common(worker, launcher)
    else:
        worker.fault("is required")
    if launcher.given:
        pod = Pod(launcher.at("template"))
        _workers(draft, pod, worker)
        # Whoever does not name horovodrun may run anything: nobody knows whether it could go on with another size.
        draft.runs(pod, "horovod" if any("horovodrun" in word for word in pod.command()) else "mpi")
    else:
        launcher.fault("is required")
    return draft.job(), draft


def _workers(draft: Draft, launcher: Pod, worker: Place) -> None:
    """The range from the launcher's environment, in workers: the variables count processes."""
    env = launcher.env()

    def variable(*names: str, least: int = 1) -> tuple[int | None, Place]:
        there = [env[name] for name in names if name in env]
        if len(there) > 1:
            there[1].fault(f"says the same as {names[0]}; give one of them")
        place = there[0] if there else worker.at("replicas")
        return (place.whole(least) if there else None), place

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
        # Without a minimum it is what is asked for; 0 is not asking.
        low = least // slots if least is not None else (asked or slots) // slots
        want = asked // slots if asked else low
        high = most // slots if most is not None else max(low, want)
        draft.put("spec.workers", {"min": low, "max": high, "desired": want})
        for field, place in (("min", least_place), ("max", most_place), ("desired", asked_place)):
            draft.put(f"spec.workers.{field}", None, place)
    epochs, place = variable("EPOCHS")
    draft.put("spec.epochs", epochs, place)
    if "JOB_PRIORITY" in env:
        # Voda's 0 is its highest.
        rank = env["JOB_PRIORITY"].whole(least=-(10**9))
        draft.put("spec.priority", None if rank is None else -rank, env["JOB_PRIORITY"])
