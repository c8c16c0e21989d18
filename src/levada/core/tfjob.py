"""The rules of TFJobs: what their processes are told, and what their pods' ends mean."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import msgspec

#: Exit codes after which a worker is started again: it was interrupted, killed, told to, or terminated.
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

    It lists `max_workers` workers whatever the present size is, so a resize never changes it; absent workers simply do
    not resolve.
    """
    service = f"{namespace}.svc" + (f".{cluster_domain}" if cluster_domain else "")

    def addresses(kind: str, replicas: int) -> list[str]:
        return [f"{job}-{kind}-{index}.{service}:{port}" for index in range(replicas)]

    # Keys in alphabetical order; a group that a job has not does not appear.
    cluster = {"ps": addresses("ps", servers), "worker": addresses("worker", max_workers)}
    value = {
        "cluster": {kind: hosts for kind, hosts in cluster.items() if hosts},
        "task": {"type": task_type, "index": task_index},
        "environment": "cloud",
    }
    return json.dumps(value, separators=(",", ":"))


def is_retryable(exit_code: int | None) -> bool:
    """Whether a worker that ended so is started again under the policy ExitCode; an unknown code is permanent."""
    return exit_code in RETRYABLE_CODES


class Pod(msgspec.Struct, frozen=True):
    """What is seen of one pod of a job."""

    #: ps or worker.
    type: str
    index: int
    #: As Kubernetes names it.
    phase: str
    exit_code: int | None = None


def condition(planned: Mapping[str, int], pods: Iterable[Pod], restart_policy: str) -> str | None:
    """The condition that these pods bring about: Succeeded, Failed, Restarting, Running, or None for no news.

    *planned* is the present size by type, not the size in the specification: a job that was shrunk to one worker has
    succeeded when that one has. The first that holds counts, so success beats a failure seen at the same time.
    """
    seen = list(pods)
    workers = [pod for pod in seen if pod.type == "worker"]
    done = sum(pod.phase == "Succeeded" for pod in workers)
    chief_done = any(pod.index == 0 and pod.phase == "Succeeded" and not pod.exit_code for pod in workers)
    if chief_done or (planned.get("worker", 0) > 0 and done >= planned["worker"]):
        return "Succeeded"
    failed = [pod for pod in seen if pod.phase == "Failed"]
    starts_again = [restart_policy == "ExitCode" and is_retryable(pod.exit_code) for pod in failed]
    if not all(starts_again):
        return "Failed"
    if failed:
        return "Restarting"
    return "Running" if any(pod.phase == "Running" for pod in workers) else None
