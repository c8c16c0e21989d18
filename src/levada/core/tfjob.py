"""Rules of TFJobs: `TF_CONFIG`, and conditions from the states of their pods."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import msgspec

#: Exit codes after which a worker is restarted: SIGINT, SIGKILL, SIGUSR1, SIGTERM.
RETRYABLE_CODES = frozenset({130, 137, 138, 143})

DEFAULT_PORT = 2222


def tf_config(
    job: str,
    *,
    namespace: str,
    servers: int,
    max_workers: int,
    task_type: str,
    task_index: int,
    cluster_domain: str = "",
    port: int = DEFAULT_PORT,
) -> str:
    """The value of TF_CONFIG for one process, byte for byte as TensorFlow's operator writes it.

    It always lists `max_workers` workers, so a resize does not change it; addresses of absent workers do not resolve.
    """
    service = f"{namespace}.svc" + (f".{cluster_domain}" if cluster_domain else "")

    def addresses(kind: str, replicas: int) -> list[str]:
        return [f"{job}-{kind}-{index}.{service}:{port}" for index in range(replicas)]

    # Keys are in alphabetical order; empty groups are omitted.
    cluster = {"ps": addresses("ps", servers), "worker": addresses("worker", max_workers)}
    value = {
        "cluster": {kind: hosts for kind, hosts in cluster.items() if hosts},
        "task": {"type": task_type, "index": task_index},
        "environment": "cloud",
    }
    return json.dumps(value, separators=(",", ":"))


def is_retryable(exit_code: int | None) -> bool:
    """Whether a worker with this exit code is restarted under the policy ExitCode; unknown codes are permanent."""
    return exit_code in RETRYABLE_CODES


class TFJobPod(msgspec.Struct, frozen=True):
    """The observed state of a pod."""

    #: ps or worker.
    type: str
    index: int
    #: As Kubernetes names it.
    phase: str
    exit_code: int | None = None


def condition(planned: Mapping[str, int], pods: Iterable[TFJobPod], restart_policy: str) -> str | None:
    """The condition of a TFJob with these pods: Succeeded, Failed, Restarting, Running, or None if unchanged.

    *planned* is the current size by type, not the size in the specification: a job that was shrunk to one worker has
    succeeded when that one has. The first condition that holds counts, so success beats a simultaneous failure.
    """
    observed = list(pods)
    workers = [pod for pod in observed if pod.type == "worker"]
    done = sum(pod.phase == "Succeeded" for pod in workers)
    chief_done = any(pod.index == 0 and pod.phase == "Succeeded" and not pod.exit_code for pod in workers)
    if chief_done or (planned.get("worker", 0) > 0 and done >= planned["worker"]):
        return "Succeeded"
    failed = [pod for pod in observed if pod.phase == "Failed"]
    restarts = [restart_policy == "ExitCode" and is_retryable(pod.exit_code) for pod in failed]
    if not all(restarts):
        return "Failed"
    if failed:
        return "Restarting"
    return "Running" if any(pod.phase == "Running" for pod in workers) else None
