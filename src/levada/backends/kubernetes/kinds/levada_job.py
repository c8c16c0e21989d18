"""`levada.dev/v1` Job: Levada makes the pods itself; there is no operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from levada.backends.kubernetes import names
from levada.backends.kubernetes.client import Resource
from levada.backends.kubernetes.kinds.kind import WORKER, Ending, JobKind, index_label
from levada.backends.kubernetes.objects import JobObject, PodObject
from levada.backends.kubernetes.stamp import FINISHED, stamp_of

#: Each pod has an address of its own, so that all jobs use the same port.
_MASTER_PORT = 29500


class LevadaJob(JobKind):
    """A job of Levada's own CRD. It ends when all its workers have succeeded, or when one has failed."""

    resource = Resource(kind="Job", plural="jobs", version="v1", group="levada.dev")
    pods_of = "levada.dev/Job"
    makes_pods = True

    def job_of(self, pod: PodObject) -> str | None:
        """The object that the pod was made for."""
        return pod.metadata.labels.get(names.POD_JOB)

    def place_of(self, job: JobObject, pod: PodObject) -> tuple[str, int | None]:
        """A worker with its ordinal."""
        return WORKER, index_label(pod, names.POD_ORDINAL)

    def is_suspended(self, job: JobObject) -> bool:
        """Without Levada it has no pods."""
        return names.GRANT not in job.metadata.annotations

    def size(self, job: JobObject) -> int:
        """Its smallest size."""
        workers = job.spec.get("workers", 1)
        return int(workers.get("min", 1)) if isinstance(workers, Mapping) else int(workers)

    def planned(self, job: JobObject, size: int, *, suspend: bool) -> Mapping[str, Any]:
        """The spec belongs to the user; the grant in the annotations says what runs."""
        return job.spec

    def ending(self, job: JobObject, pods: Sequence[PodObject]) -> Ending | None:
        """By the phases of its pods, and after that by the stamp: nothing else keeps its status."""
        stamp = stamp_of(job.metadata.annotations)
        if stamp is None or stamp.verdict == FINISHED:
            return None if stamp is None else Ending(succeeded=True)
        present = [pod for pod in pods if not pod.is_leaving]
        failed = [pod for pod in present if pod.status.phase == "Failed"]
        if failed:
            return Ending(succeeded=False, why=f"{failed[0].metadata.name} failed with exit code {failed[0].exit_code}")
        done = [pod for pod in present if pod.status.phase == "Succeeded"]
        return Ending(succeeded=True) if done and len(done) >= max(stamp.size, len(present)) else None

    def pod_templates(self, job: JobObject) -> list[Mapping[str, Any]]:
        """The template in `spec.kubernetes`, with the command and resources of the job where it has none."""
        section = job.spec.get("kubernetes") or {}
        template = section.get("template") or {}
        spec = dict(template.get("spec") or {})
        main, *others = spec.get("containers") or [{"name": "main"}]
        run = job.spec.get("run") or {}
        env = [{"name": name, "value": str(value)} for name, value in (run.get("env") or {}).items()]
        main = {
            "name": "main",
            "image": section.get("image"),
            "command": run.get("command"),
            "resources": _resources(job.spec),
            **main,
            "env": [*(main.get("env") or ()), *env],
        }
        spec["containers"] = [{name: value for name, value in main.items() if value is not None}, *others]
        return [{**template, "spec": {"restartPolicy": "Never", **spec}}]


def _resources(spec: Mapping[str, Any]) -> dict[str, Any]:
    asked = {name: str(value) for name, value in (spec.get("resources") or {}).items() if name in ("cpu", "memory")}
    gpus = spec.get("gpusPerWorker", 1)
    return {"requests": asked, "limits": {names.GPUS[0]: str(gpus)} if isinstance(gpus, int) and gpus else {}}


class RankOf(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker must know about its group."""

    job: str
    rank: int
    size: int
    generation: int


def new_pod(job: JobObject, template: Mapping[str, Any], node: str, worker: RankOf) -> dict[str, Any]:
    """The pod of one worker, pinned to a node, with the variables of its rank."""
    meta, spec, name = template.get("metadata") or {}, template["spec"], job.metadata.name
    main, *others = spec["containers"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{name}-{worker.rank}",
            "labels": {**(meta.get("labels") or {}), names.POD_JOB: name, names.POD_ORDINAL: str(worker.rank)},
            "annotations": {**(meta.get("annotations") or {}), names.GENERATION: str(worker.generation)},
            "ownerReferences": [_owner(job)],
        },
        "spec": {
            **spec,
            "hostname": f"{name}-{worker.rank}",
            "subdomain": name,
            "containers": [{**main, "env": [*(main.get("env") or ()), *_rank_env(job, worker)]}, *others],
            "nodeSelector": {**(spec.get("nodeSelector") or {}), names.HOSTNAME: node},
        },
    }


def new_service(job: JobObject) -> dict[str, Any]:
    """The Service that gives the pods of a job their host names."""
    name = job.metadata.name
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {names.POD_JOB: name}}
    meta = {"name": name, "ownerReferences": [_owner(job)]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def _owner(job: JobObject) -> dict[str, Any]:
    meta = job.metadata
    return {"apiVersion": job.api_version, "kind": job.kind, "name": meta.name, "uid": meta.uid, "controller": True}


def _rank_env(job: JobObject, worker: RankOf) -> list[dict[str, Any]]:
    master = f"{job.metadata.name}-0.{job.metadata.name}.{job.metadata.namespace}.svc"
    values = {
        "LEVADA_JOB": worker.job,
        "LEVADA_GENERATION": worker.generation,
        "LEVADA_RANK": worker.rank,
        "LEVADA_WORLD_SIZE": worker.size,
        "RANK": worker.rank,
        "WORLD_SIZE": worker.size,
        "LOCAL_RANK": 0,
        "MASTER_ADDR": master,
        "MASTER_PORT": _MASTER_PORT,
    }
    fields = {"LEVADA_NODE": "spec.nodeName", "LEVADA_WORKER": "metadata.name"}
    return [
        *({"name": name, "value": str(value)} for name, value in values.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
    ]
