"""Jobs of every kind, and what tests do with them in one namespace of the test bed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.kubernetes.testbed.api import Api, Object, Patch, wait_for
from tests.kubernetes.testbed.manifests import GATE

HOSTNAME = "kubernetes.io/hostname"
_PATHS = {
    "Pod": "/api/v1/namespaces/{}/pods",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "MPIJob": "/apis/kubeflow.org/v2beta1/namespaces/{}/mpijobs",
    "PyTorchJob": "/apis/kubeflow.org/v1/namespaces/{}/pytorchjobs",
    "TFJob": "/apis/kubeflow.org/v1/namespaces/{}/tfjobs",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
    "TrainJob": "/apis/trainer.kubeflow.org/v1alpha1/namespaces/{}/trainjobs",
}
_INDEX_LABELS = ("training.kubeflow.org/replica-index", "batch.kubernetes.io/job-completion-index")


class Namespace:
    """Objects of one namespace, by kind and name."""

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name

    def path(self, kind: str, name: str = "") -> str:
        """The path of an object, or of all objects of a kind."""
        folder = _PATHS[kind].format(self.name)
        return f"{folder}/{name}" if name else folder

    def create(self, body: Object) -> Object:
        """Create an object of any kind above."""
        return self.api.post(self.path(body["kind"]), body)

    def get(self, kind: str, name: str) -> Object:
        """Read an object."""
        return self.api.get(self.path(kind, name))

    def patch(self, kind: str, name: str, body: Object | list[Object], how: Patch = "merge") -> Object:
        """Change an object."""
        return self.api.patch(self.path(kind, name), body, how)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object and its dependents."""
        self.api.delete(self.path(kind, name))

    def pods(self, selector: str = "") -> list[Object]:
        """The pods, ordered by index and name, without those being deleted."""
        pods = self.api.items(self.path("Pod"), selector)
        alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return sorted(alive, key=lambda pod: (index_of(pod), pod["metadata"]["name"]))

    def wait_for_pods(
        self, count: int, are: Callable[[Object], bool] = lambda _: True, selector: str = ""
    ) -> list[Object]:
        """Wait until there are exactly `count` pods, all as `are` demands, and return them."""

        def look() -> tuple[list[Object]] | None:
            pods = self.pods(selector)
            return (pods,) if len(pods) == count and all(map(are, pods)) else None

        return wait_for(look, f"{count} pods in {self.name}")[0]

    def place(self, pod: Object, node: str) -> Object:
        """Remove the gate and pin the pod to a node in one patch, if it is still the same pod and gated."""
        return self.patch("Pod", pod["metadata"]["name"], placing(pod, node), "json")

    def place_all(self, count: int, nodes: list[str], selector: str = "") -> list[Object]:
        """Place `count` gated pods on nodes in turn and wait until all pods run."""
        for number, pod in enumerate(self.wait_for_pods(count, is_gated, selector)):
            self.place(pod, nodes[number % len(nodes)])
        return self.wait_for_pods(count, is_running, selector)

    def place_all_gated(self, nodes: list[str]) -> list[Object]:
        """Place the gated pods on nodes in turn, wait until all pods run, and return these."""
        pods = self.pods()
        gated = [pod for pod in pods if "schedulingGates" in pod["spec"]]
        for number, pod in enumerate(gated):
            self.place(pod, nodes[number % len(nodes)])
        return self.wait_for_pods(len(pods), is_running)

    def annotate(self, pod: Object, **annotations: str) -> None:
        """Set annotations `levada.dev/...` of a pod; `_` stands for `-`."""
        values = {f"levada.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
        self.patch("Pod", pod["metadata"]["name"], {"metadata": {"annotations": values}})

    def condition(self, kind: str, name: str, condition: str) -> str | None:
        """The status of a condition of an object, e.g. "True"."""
        conditions = self.get(kind, name).get("status", {}).get("conditions") or ()
        return next((each["status"] for each in conditions if each["type"] == condition), None)

    def wait_for_condition(self, kind: str, name: str, condition: str) -> None:
        """Wait until a condition is true."""
        wait_for(lambda: self.condition(kind, name, condition) == "True", f"{kind} {name} is {condition}")


def placing(pod: Object, node: str) -> list[Object]:
    """The JSON patch that ungates a pod and pins it to a node."""
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod["metadata"]["uid"]},
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": GATE},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
        {"op": "add", "path": "/spec/nodeSelector", "value": pod["spec"].get("nodeSelector", {}) | {HOSTNAME: node}},
    ]


def index_of(pod: Object) -> int:
    """The index of a worker; -1 if the pod has none."""
    labels = pod["metadata"].get("labels", {})
    return next((int(labels[label]) for label in _INDEX_LABELS if label in labels), -1)


def uids(pods: list[Object]) -> list[str]:
    """The uids of pods."""
    return [pod["metadata"]["uid"] for pod in pods]


def is_gated(pod: Object) -> bool:
    """Whether the pod waits for its placement, and its status says so."""
    conditions = pod["status"].get("conditions", ())
    reason = next((each.get("reason") for each in conditions if each["type"] == "PodScheduled"), None)
    return pod["spec"].get("schedulingGates") == [{"name": GATE}] and reason == "SchedulingGated"


def is_running(pod: Object) -> bool:
    """Whether the pod runs."""
    return bool(pod["status"].get("phase") == "Running")


def template(gpus: int = 1, *, gated: bool = True, container: str = "main", **spec: Any) -> Object:
    """A pod template with one container."""
    resources = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    body: Object = {"containers": [{"name": container, "image": "train:1", "resources": resources}], **spec}
    if gated:
        body["schedulingGates"] = [{"name": GATE}]
    return {"spec": body}


def pod(name: str, *, gated: bool = True, **spec: Any) -> Object:
    """A pod of its own."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, **template(gated=gated, **spec)}


def job(name: str, size: int, *, suspend: bool = False) -> Object:
    """An indexed batch Job in which all indices run at the same time."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"suspend": suspend, **_indexed(size)},
    }


def mpijob(name: str, workers: int, *, suspend: bool = False) -> Object:
    """An MPIJob: its launcher asks for no GPU."""
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"suspend": suspend, "cleanPodPolicy": "Running"},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": template(0)},
                "Worker": {"replicas": workers, "template": template()},
            },
        },
    }


def pytorchjob(name: str, workers: int, *, most: int = 8, suspend: bool = False) -> Object:
    """An elastic PyTorchJob without a master."""
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"suspend": suspend, "cleanPodPolicy": "Running"},
            "elasticPolicy": {"minReplicas": 1, "maxReplicas": most, "rdzvBackend": "c10d"},
            "pytorchReplicaSpecs": {
                "Worker": {
                    "replicas": workers,
                    "restartPolicy": "OnFailure",
                    "template": template(container="pytorch"),
                }
            },
        },
    }


def tfjob(name: str, workers: int, servers: int = 1, *, suspend: bool = False) -> Object:
    """An elastic TFJob with parameter servers."""
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name},
        "spec": {
            "runPolicy": {"suspend": suspend, "cleanPodPolicy": "Running"},
            "enableDynamicWorker": True,
            "tfReplicaSpecs": {
                "PS": {"replicas": servers, "template": template(0, container="tensorflow")},
                "Worker": {"replicas": workers, "template": template(container="tensorflow")},
            },
        },
    }


def jobset(name: str, size: int, *, suspend: bool = False) -> Object:
    """A JobSet with one Job; the webhook makes it indexed."""
    spec = _indexed(size)
    del spec["completionMode"], spec["template"]["spec"]["restartPolicy"]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"suspend": suspend, "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": spec}}]},
    }


def trainjob(name: str, size: int, *, suspend: bool = False, **pod_spec: Any) -> Object:
    """A TrainJob of the runtime `torch-distributed`; our runtime patch holds the gate."""
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "suspend": suspend,
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": "train:1",
                "numNodes": size,
                "resourcesPerNode": {"limits": {"nvidia.com/gpu": "1"}},
            },
            "runtimePatches": [runtime_patch(schedulingGates=[{"name": GATE}], **pod_spec)],
        },
    }


def runtime_patch(**pod_spec: Any) -> Object:
    """What Levada changes in the pods of a TrainJob."""
    replicated = {"name": "node", "template": {"spec": {"template": {"spec": pod_spec}}}}
    patch = {"template": {"spec": {"replicatedJobs": [replicated]}}}
    return {"manager": "levada.dev/scheduler", "trainingRuntimeSpec": patch}


def _indexed(size: int) -> Object:
    return {
        "completionMode": "Indexed",
        "parallelism": size,
        "completions": size,
        "backoffLimit": 1000,
        "template": template(restartPolicy="Never"),
    }
