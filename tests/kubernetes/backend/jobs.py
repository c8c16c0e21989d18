"""Job manifests of every kind, with two workers of one GPU."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.backend.api_rules import Object
from tests.kubernetes.backend.fake_cluster import GPU

QUEUE = {"levada.dev/queue": "default"}
ELASTIC = {"levada.dev/min-workers": "1", "levada.dev/max-workers": "8"}


def template(gpus: int = 1, **spec: Any) -> Object:
    """A pod template without Levada's gate."""
    resources = {"limits": {GPU: str(gpus)}} if gpus else {}
    return {"spec": {"containers": [{"name": "main", "image": "train:1", "resources": resources}], **spec}}


def _meta(name: str, elastic: bool = False) -> Object:
    return {"name": name, "labels": dict(QUEUE), "annotations": dict(ELASTIC) if elastic else {}}


def batch_job(name: str = "train", size: int = 2, *, elastic: bool = True, **spec: Any) -> Object:
    """An indexed Job."""
    body = {"completionMode": "Indexed", "parallelism": size, "completions": size, "suspend": True}
    body |= {"template": template(), **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": _meta(name, elastic), "spec": body}


def mpijob(name: str = "train", size: int = 2) -> Object:
    """An elastic Horovod job."""
    launcher = template(0)
    launcher["spec"]["containers"][0]["command"] = ["horovodrun", "--min-np", "1", "python", "train.py"]
    groups = {"Launcher": {"replicas": 1, "template": launcher}, "Worker": {"replicas": size, "template": template()}}
    spec = {"runPolicy": {"suspend": True, "cleanPodPolicy": "Running"}, "mpiReplicaSpecs": groups}
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": _meta(name), "spec": spec}


def pytorchjob(name: str = "train", size: int = 2, *, master: bool = False) -> Object:
    """An elastic PyTorchJob, or one with a master."""
    groups: Object = {"Worker": {"replicas": size - master, "restartPolicy": "OnFailure", "template": template()}}
    spec: Object = {"runPolicy": {"suspend": True}, "pytorchReplicaSpecs": groups}
    if master:
        groups["Master"] = {"replicas": 1, "template": template()}
    else:
        spec["elasticPolicy"] = {"minReplicas": 1, "maxReplicas": 8, "rdzvBackend": "c10d"}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": _meta(name), "spec": spec}


def jobset(name: str = "train", size: int = 2) -> Object:
    """A JobSet of one Job."""
    inner = {"parallelism": size, "completions": size, "template": template()}
    spec = {"suspend": True, "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": inner}}]}
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": _meta(name), "spec": spec}


def trainjob(name: str = "train", size: int = 2) -> Object:
    """A TrainJob."""
    trainer = {"image": "train:1", "numNodes": size, "resourcesPerNode": {"limits": {GPU: "1"}}}
    spec = {"suspend": True, "runtimeRef": {"name": "torch-distributed"}, "trainer": trainer}
    return {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": _meta(name), "spec": spec}


def levada_job(name: str = "train", size: int = 2) -> Object:
    """A job of Levada's own CRD."""
    spec = {
        "workers": {"min": size, "max": 8},
        "run": {"command": ["python", "train.py"]},
        "kubernetes": {"image": "i"},
    }
    return {"apiVersion": "levada.dev/v1", "kind": "Job", "metadata": _meta(name), "spec": spec}


def single_pod(name: str = "train", size: int = 1) -> Object:
    """A gated pod."""
    spec = template(schedulingGates=[{"name": "levada.dev/placement"}])["spec"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _meta(name), "spec": spec}
