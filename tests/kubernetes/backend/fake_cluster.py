"""Controllers of the fake API: operators, scheduler, kubelet and garbage collector, with random delays in virtual time."""

from __future__ import annotations

import asyncio
import copy
import random
from typing import Any

from levada.backends.kubernetes.client import NODES, PODS, ApiError, Resource
from levada.backends.kubernetes.kinds import KINDS
from levada.backends.kubernetes.names import HOSTNAME
from tests.kubernetes.backend.api_rules import Object, is_gated, is_over
from tests.kubernetes.backend.fake_api import FakeApi

GPU = "nvidia.com/gpu"
KUBEFLOW = "training.kubeflow.org/"
RESOURCES = {(kind.resource.api_version, kind.resource.kind): kind.resource for kind in KINDS}
#: Role, index and body of a pod that an operator wants.
Wanted = dict[tuple[str, int], Object]


class FakeCluster:
    """Nodes and controllers around a `FakeApi`."""

    def __init__(self, api: FakeApi | None = None, seed: int = 0) -> None:
        self.api = FakeApi() if api is None else api
        self._random = random.Random(seed)
        self.api.hooks.append(self._react)
        #: Pods do not start on these nodes; pods that are being deleted stay on these.
        self.broken: set[str] = set()
        self.stuck: set[str] = set()

    def add_node(self, name: str, gpus: int = 4, gpu_type: str = "a100", **fields: Any) -> None:
        """Add a ready node."""
        labels = {HOSTNAME: name, "levada.dev/accelerator": gpu_type, **fields.pop("labels", {})}
        body = {
            "metadata": {"name": name, "labels": labels},
            "spec": fields,
            "status": {
                "allocatable": {GPU: str(gpus), "cpu": "32", "memory": "128Gi", "pods": "110"},
                "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-18T10:00:00Z"}],
            },
        }
        self.api.add(NODES, "", body)

    def add_pod(self, name: str, node: str, gpus: int = 1, **meta: Any) -> None:
        """Add a foreign pod that runs on a node."""
        body = {"metadata": {"name": name, **meta}, "spec": {"nodeName": node, **_containers(gpus)}}
        self.api.add(PODS, "others", {**body, "status": {"phase": "Running"}})

    def create(self, body: Object, namespace: str = "ns") -> Object:
        """Create a job as a user does."""
        return self.api.add(RESOURCES[body["apiVersion"], body["kind"]], namespace, body)

    def pods(self, namespace: str = "ns") -> list[Object]:
        """The pods of a namespace that are not being deleted."""
        found = [pod for pod in self.api.all(PODS) if pod["metadata"]["namespace"] == namespace]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def end_pod(self, pod: Object, phase: str = "Succeeded", code: int = 0) -> None:
        """Let the containers of a pod end."""
        state = [{"name": "main", "state": {"terminated": {"exitCode": code}}}]
        status = {"phase": phase, "containerStatuses": state}
        meta = pod["metadata"]
        self.api.change(PODS, meta["namespace"], meta["name"], lambda body: body["status"].update(status))

    def used(self, node: str) -> int:
        """GPUs of the pods that are bound to a node."""
        return sum(
            gpus_of(pod) for pod in self.api.all(PODS) if pod["spec"].get("nodeName") == node and not is_over(pod)
        )

    # --- controllers ------------------------------------------------------------------------------------------------

    def _later(self, action: Any, *arguments: Any, least: float = 0.005, most: float = 0.1) -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(self._random.uniform(least, most), self._safely, action, *arguments)

    def _safely(self, action: Any, *arguments: Any) -> None:
        try:
            action(*arguments)
        except ApiError as error:
            if error.code not in (404, 409):
                raise

    def _react(self, kind: str, body: Object) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return  # the scene is being set
        meta = body["metadata"]
        if body["kind"] == "Pod":
            owner = next(iter(meta.get("ownerReferences") or ()), None)
            if owner is not None and owner["apiVersion"] != "levada.dev/v1":
                resource = RESOURCES[owner["apiVersion"], owner["kind"]]
                self._later(self._sync, resource, meta["namespace"], owner["name"], owner["uid"])
            if kind != "DELETED":
                self._later(self._run_pod, meta["namespace"], meta["name"], meta["uid"])
        elif (body["apiVersion"], body["kind"]) in RESOURCES:
            resource = RESOURCES[body["apiVersion"], body["kind"]]
            self._later(self._sync, resource, meta["namespace"], meta["name"], meta["uid"])

    def _run_pod(self, namespace: str, name: str, uid: str) -> None:
        """Scheduler and kubelet: bind, start, remove."""
        pod = self.api.read(PODS, namespace, name)
        if pod["metadata"]["uid"] != uid:
            return
        node = pod["spec"].get("nodeName")
        if "deletionTimestamp" in pod["metadata"]:
            if node not in self.stuck:
                self._later(self._remove_pod, namespace, name, uid, least=0.1, most=2.0)
        elif node is None and not is_gated(pod):
            self._bind(pod)
        elif node is not None and pod["status"]["phase"] == "Pending" and node not in self.broken:
            self._later(self._start_pod, namespace, name, uid)

    def _remove_pod(self, namespace: str, name: str, uid: str) -> None:
        if self.api.read(PODS, namespace, name)["metadata"]["uid"] == uid:
            self.api.remove(PODS, namespace, name, 0)

    def _start_pod(self, namespace: str, name: str, uid: str) -> None:
        pod = self.api.read(PODS, namespace, name)
        if pod["metadata"]["uid"] == uid and pod["status"]["phase"] == "Pending":
            self.api.change(PODS, namespace, name, lambda body: body["status"].update(phase="Running"))

    def _bind(self, pod: Object) -> None:
        meta = pod["metadata"]
        node = (pod["spec"].get("nodeSelector") or {}).get(HOSTNAME)
        try:
            room = int(self.api.read(NODES, "", node or "?")["status"]["allocatable"][GPU]) - self.used(node or "?")
        except ApiError:
            room = -1
        if room >= gpus_of(pod):
            self.api.change(PODS, meta["namespace"], meta["name"], lambda body: body["spec"].update(nodeName=node))
            return
        message = f"0/4 nodes are available: 1 Insufficient {GPU}, 3 node(s) didn't match Pod's node affinity/selector."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        if pod["status"].get("conditions") != [condition]:
            status = {"conditions": [condition]}
            self.api.change(PODS, meta["namespace"], meta["name"], lambda body: body["status"].update(status))
        self._later(self._run_pod, meta["namespace"], meta["name"], meta["uid"], least=0.5, most=1.0)

    # --- operators --------------------------------------------------------------------------------------------------

    def _sync(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        """Make the pods of a job what its spec says."""
        if resource.kind == "Pod" or (
            resource.group == "levada.dev" and resource.path(namespace, name) in self.api.objects
        ):
            return  # no operator; the garbage collector acts when the object is gone
        job = self.api.objects.get(resource.path(namespace, name))
        if job is not None and job["metadata"]["uid"] != uid:
            job = None
        pods = [
            pod
            for pod in self.api.all(PODS)
            if pod["metadata"]["namespace"] == namespace
            and any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences") or ())
        ]
        if job is None:
            for pod in pods:
                self._delete(pod)
            return
        if _is_finished(job):
            return
        ended = _ending(job, pods)
        if ended is not None:
            condition = {"type": ended, "status": "True", "message": "as the fake operator sees it"}
            self.api.change(
                resource, namespace, name, lambda body: body.setdefault("status", {}).update(conditions=[condition])
            )
            return
        wanted = wanted_pods(job)
        present: dict[tuple[str, int], Object] = {}
        for pod in pods:
            place = _place(pod)
            leaving = "deletionTimestamp" in pod["metadata"]
            if place not in wanted:
                self._delete(pod)
            elif pod["status"]["phase"] == "Failed" and job["kind"] != "Job":
                self._delete(pod)  # replaced under the same name
            elif not leaving and pod["status"]["phase"] != "Failed":
                present[place] = pod
        for place, body in wanted.items():
            if place not in present:
                self._safely(self.api.add, PODS, namespace, self._with_owner(body, job))

    def _with_owner(self, body: Object, job: Object) -> Object:
        owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "controller": True}
        owner |= {"name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
        return {**body, "metadata": {**body["metadata"], "ownerReferences": [owner]}}

    def _delete(self, pod: Object) -> None:
        meta = pod["metadata"]
        if "deletionTimestamp" not in meta:
            self._safely(self.api.remove, PODS, meta["namespace"], meta["name"], None)


def gpus_of(pod: Object) -> int:
    """GPUs that a pod asks for."""
    return sum(int(each.get("resources", {}).get("limits", {}).get(GPU, 0)) for each in pod["spec"]["containers"])


def _containers(gpus: int) -> Object:
    return {"containers": [{"name": "main", "resources": {"limits": {GPU: str(gpus)}} if gpus else {}}]}


def _is_finished(job: Object) -> bool:
    conditions = job.get("status", {}).get("conditions") or ()
    return any(each["type"] in ("Complete", "Completed", "Succeeded", "Failed") for each in conditions)


def _place(pod: Object) -> tuple[str, int]:
    labels = pod["metadata"]["labels"]
    return labels["test/role"], int(labels["test/index"])


def _ending(job: Object, pods: list[Object]) -> str | None:
    """The condition with which the operator ends a job."""
    phases = {_place(pod): pod["status"]["phase"] for pod in pods}
    if any(pod["metadata"].get("annotations", {}).get("test/fatal") for pod in pods):
        return "Failed"
    match job["kind"]:
        case "MPIJob":
            return "Succeeded" if phases.get(("launcher", 0)) == "Succeeded" else None
        case "PyTorchJob":
            first = ("master" if "Master" in job["spec"]["pytorchReplicaSpecs"] else "worker", 0)
            return "Succeeded" if phases.get(first) == "Succeeded" else None
        case _:
            wanted = wanted_pods(job)
            done = bool(wanted) and all(phases.get(place) == "Succeeded" for place in wanted)
            return ("Completed" if job["kind"] == "JobSet" else "Complete") if done else None


def wanted_pods(job: Object) -> Wanted:
    """The pods that an operator makes for a job."""
    spec, name = job["spec"], job["metadata"]["name"]
    if spec.get("suspend") or spec.get("runPolicy", {}).get("suspend"):
        return {}
    match job["kind"]:
        case "Job":
            labels = {"batch.kubernetes.io/job-name": name}
            index = "batch.kubernetes.io/job-completion-index" if spec.get("completionMode") == "Indexed" else ""
            return {
                ("worker", i): _pod(spec["template"], "worker", i, labels, index, prefix=f"{name}-{i}-")
                for i in range(spec["parallelism"])
            }
        case "MPIJob" | "PyTorchJob":
            return _kubeflow_pods(job)
        case "JobSet" | "TrainJob":
            labels = {"jobset.sigs.k8s.io/jobset-name": name, "batch.kubernetes.io/job-name": f"{name}-node-0"}
            if job["kind"] == "JobSet":
                inner = spec["replicatedJobs"][0]["template"]["spec"]
                count, template = inner["parallelism"], inner["template"]
            else:
                count, patches = spec["trainer"]["numNodes"], spec.get("runtimePatches") or ()
                template = {"spec": _containers(1)}
                for patch in patches:
                    (each,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
                    template["spec"] |= each["template"]["spec"]["template"]["spec"]
            return {
                ("node", i): _pod(template, "node", i, labels, "", prefix=f"{name}-node-0-{i}-") for i in range(count)
            }
        case _:
            return {}


def _kubeflow_pods(job: Object) -> Wanted:
    spec, name = job["spec"], job["metadata"]["name"]
    operator = "mpi-operator" if job["kind"] == "MPIJob" else "pytorchjob-controller"
    groups = spec.get("mpiReplicaSpecs") or spec["pytorchReplicaSpecs"]
    wanted: Wanted = {}
    for group, body in groups.items():
        role = group.lower()
        labels = {
            KUBEFLOW + "job-name": name,
            KUBEFLOW + "operator-name": operator,
            KUBEFLOW + "job-role": role,
            KUBEFLOW + "replica-type": role,
        }
        for i in range(body.get("replicas", 1)):
            fixed = "" if role == "launcher" else f"{name}-{role}-{i}"
            prefix = f"{name}-launcher-"
            index = KUBEFLOW + "replica-index"
            wanted[role, i] = _pod(body["template"], role, i, labels, index, name=fixed, prefix=prefix)
    return wanted


def _pod(
    template: Object, role: str, index: int, labels: Object, index_label: str, *, name: str = "", prefix: str = ""
) -> Object:
    own = {**labels, "test/role": role, "test/index": str(index)}
    if index_label:
        own[index_label] = str(index)
    return {
        "metadata": {**({"name": name} if name else {"generateName": prefix}), "labels": own},
        "spec": copy.deepcopy(template["spec"]),
    }
