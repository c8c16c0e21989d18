"""Manifests of other kinds as people write them, and ways to change them."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import yaml

MPI = yaml.safe_load("""
apiVersion: kubeflow.org/v1
kind: MPIJob
metadata: {name: mnist}
spec:
  slotsPerWorker: 1
  cleanPodPolicy: Running
  mpiReplicaSpecs:
    Launcher:
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
          - name: launcher
            image: example/horovod
            env:
            - {name: JOB_NAME, value: mnist}
            - {name: NP, value: "2"}
            - {name: MIN_NP, value: "1"}
            - {name: MAX_NP, value: "8"}
            - {name: EPOCHS, value: "150"}
            - {name: JOB_PRIORITY, value: "3"}
            command: [/bin/bash, -c]
            args: [horovodrun -np $(MIN_NP) --max-np $(MAX_NP) python train.py --out /outputs/$(JOB_NAME) --at $(date)]
    Worker:
      replicas: 2
      template:
        spec:
          nodeSelector: {vodascheduler/accelerator: v100}
          containers:
          - name: worker
            image: example/horovod
            resources: {limits: {cpu: 2, memory: 4Gi, nvidia.com/gpu: 1}}
""")

TF = yaml.safe_load("""
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: job1, labels: {levada.dev/queue: lab, team: vision}}
spec:
  max-instances: 4
  min-instances: 1
  cleanPodPolicy: All
  tfReplicaSpecs:
    PS:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          containers:
          - name: tensorflow
            image: tensorflow/tensorflow
            command: [python3, serve.py]
            env: [{name: ROLE, value: server}]
            resources: {limits: {cpu: "4", memory: 8Gi}}
    Worker:
      replicas: 3
      restartPolicy: OnFailure
      template:
        metadata: {annotations: {}}
        spec:
          terminationGracePeriodSeconds: 5
          containers:
          - {name: sidecar, image: example/logs, resources: {requests: {cpu: 500m}}}
          - name: tensorflow
            image: tensorflow/tensorflow
            command: [python3, train.py]
            resources: {requests: {cpu: 1}, limits: {cpu: "4", memory: 8Gi, nvidia.com/gpu: 1}}
""")

TORCH = yaml.safe_load("""
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: resnet}
spec:
  elasticPolicy: {minReplicas: 1, maxReplicas: 4, rdzvBackend: c10d, maxRestarts: 10}
  runPolicy: {activeDeadlineSeconds: 3600, ttlSecondsAfterFinished: 60}
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          nodeSelector: {levada.dev/accelerator: a100}
          containers:
          - name: pytorch
            image: example/torch
            command: [torchrun, --nnodes=1:4, --nproc_per_node, "1", --rdzv-backend=c10d, train.py, --lr, "0.1"]
            resources: {limits: {nvidia.com/gpu: 1}}
""")

POD = yaml.safe_load("""
apiVersion: v1
kind: Pod
metadata: {name: answers, annotations: {SERVING_POD: "true"}}
spec: {containers: [{name: a, image: example/answers}]}
""")


def changed(manifest: dict[str, Any], change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """A copy of *manifest* after *change* was called with it."""
    copy: dict[str, Any] = deepcopy(manifest)
    change(copy)
    return copy


def container(manifest: dict[str, Any], group: str, place: int = 0) -> dict[str, Any]:
    """One container of a group of replicas."""
    (groups,) = (value for key, value in manifest["spec"].items() if key.endswith("ReplicaSpecs"))
    result: dict[str, Any] = groups[group]["template"]["spec"]["containers"][place]
    return result


def set_env(manifest: dict[str, Any], name: str, value: Any) -> None:
    """Set a variable of an MPIJob's launcher; None takes it away."""
    launcher = container(manifest, "Launcher")
    launcher["env"] = [item for item in launcher["env"] if item["name"] != name]
    if value is not None:
        launcher["env"].append({"name": name, "value": value})
