"""Configuration files and objects that a test bed writes: all are plain dictionaries."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

GATE = "levada.dev/placement"
DURATION = "levada.dev/duration"
EXIT_CODE = "levada.dev/exit-code"
TERMINATION = "levada.dev/termination"

#: The status of a pod whose containers ended. CODE is a template expression.
_ENDED = """\
{{ $now := Now }}
{{ $root := . }}
{{ $code := CODE }}
containerStatuses:
{{ range .spec.containers }}
- image: {{ .image | Quote }}
  name: {{ .name | Quote }}
  ready: false
  restartCount: 0
  started: false
  state:
    terminated:
      exitCode: {{ $code }}
      finishedAt: {{ $now | Quote }}
      reason: {{ if eq $code "0" }}Completed{{ else }}Error{{ end }}
      startedAt: {{ $root.status.startTime | Quote }}
{{ end }}
phase: {{ if eq $code "0" }}Succeeded{{ else }}Failed{{ end }}
"""


def pod_stages() -> list[dict[str, Any]]:
    """The KWOK stages that end pods.

    As a kubelet does, they give a deleted pod its last phase before they remove it: the Job controller waits for that
    under `podReplacementPolicy: Failed`. KWOK's own stage does not.
    """
    deleted = {"key": ".metadata.deletionTimestamp", "operator": "Exists"}
    not_deleted = {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"}
    running = {"key": ".status.phase", "operator": "In", "values": ["Running"]}
    not_running = {"key": ".status.phase", "operator": "NotIn", "values": ["Running"]}
    limited = {"key": _annotation(DURATION), "operator": "Exists"}
    by_annotation = f'or (index .metadata.annotations "{EXIT_CODE}") "0"'
    return [
        _stage("finish", [not_deleted, running, limited], {"statusTemplate": _ended(by_annotation)}, DURATION),
        _stage("terminate", [deleted, running], {"statusTemplate": _ended('"143"')}, TERMINATION),
        _stage("remove", [deleted, not_running], {"delete": True}),
    ]


def _stage(
    name: str, selector: list[dict[str, Any]], effect: dict[str, Any], delay: str | None = None
) -> dict[str, Any]:
    stage: dict[str, Any] = {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": f"levada-pod-{name}"},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
            "selector": {"matchExpressions": selector},
            "next": effect,
        },
    }
    if delay is not None:
        stage["spec"]["delay"] = {"durationMilliseconds": 0, "durationFrom": {"expressionFrom": _annotation(delay)}}
    return stage


def _annotation(name: str) -> str:
    return f'.metadata.annotations["{name}"]'


def _ended(code: str) -> str:
    return _ENDED.replace("CODE", code)


def kubeconfig(port: int, ca: Path, token: str) -> dict[str, Any]:
    """The kubeconfig of the administrator."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "testbed",
        "clusters": [
            {
                "name": "testbed",
                "cluster": {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": _encoded(ca)},
            }
        ],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "admin"}}],
    }


def scheduler_config(kubeconfig_file: Path) -> dict[str, Any]:
    """The configuration of kube-scheduler."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig_file), "qps": 500, "burst": 1000},
    }


#: Group of the configuration, and name of its section for certificates.
_OPERATORS = {
    "jobset": ("config.jobset.x-k8s.io", "internalCertManagement"),
    "trainer": ("config.trainer.kubeflow.org", "certManagement"),
}


def operator_config(
    name: str, webhook_port: int, health_port: int, features: dict[str, bool], webhook: dict[str, str]
) -> dict[str, Any]:
    """The configuration of JobSet or Trainer: one replica, webhooks on loopback with a given certificate."""
    group, certificates = _OPERATORS[name]
    return {
        "apiVersion": f"{group}/v1alpha1",
        "kind": "Configuration",
        certificates: {"enable": False},
        "leaderElection": {"leaderElect": False},
        "webhook": {"port": webhook_port, "host": "127.0.0.1"} | webhook,
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health_port}"},
        "clientConnection": {"qps": 500, "burst": 1000},
        "featureGates": features,
    }


def webhook_configurations(
    configurations: list[dict[str, Any]], name: str, port: int, ca: Path
) -> list[dict[str, Any]]:
    """The webhook configurations of an operator, pointed to a port on loopback instead of a Service."""
    for configuration in configurations:
        configuration["metadata"]["name"] = name
        for webhook in configuration["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": _encoded(ca)}
            if webhook["rules"][0]["resources"] == ["pods"]:
                # As JobSet's own installation does: only its pods depend on its webhook.
                labelled = {"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}
                webhook["objectSelector"] = {"matchExpressions": [labelled]}
    return configurations


def node(name: str, gpu_type: str, gpus: int, cpu: str = "96", memory: str = "768Gi") -> dict[str, Any]:
    """A fake node with GPUs of one type."""
    resources = {"cpu": cpu, "memory": memory, "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {"kubernetes.io/hostname": name, "levada.dev/accelerator": gpu_type},
        },
        "status": {"allocatable": resources, "capacity": resources},
    }


def parse_nodes(text: str) -> list[dict[str, Any]]:
    """`a100=8x50,v100=4x10` is 50 nodes `a100-0` to `a100-49` with 8 a100 each, and 10 nodes with 4 v100 each."""
    nodes = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([a-z][a-z0-9-]*)=(\d+)x(\d+)\s*", part)
        if match is None:
            raise ValueError(f"nodes: {part!r} must have the form TYPE=GPUSxNODES, e.g. a100=8x50")
        gpu_type, gpus, count = match[1], int(match[2]), int(match[3])
        nodes += [node(f"{gpu_type}-{index}", gpu_type, gpus) for index in range(count)]
    return nodes


def _encoded(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()
