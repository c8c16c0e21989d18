"""Short constructors of jobs, clusters and cluster states."""

from __future__ import annotations

from typing import Any

from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Node
from levada.core.job import Job
from levada.core.queue import Queue
from levada.tables.cluster_state import ClusterState


def job(name: str, submitted: float = 0.0, **fields: Any) -> Job:
    """A job; `max` defaults to `min`."""
    fields.setdefault("max", fields.get("min", 1))
    return Job(id=name, submitted=submitted, **fields)


def cluster(*gpus: dict[str, int] | int, gpu_type: str = "v100", **fields: Any) -> Cluster:
    """One node per argument: a number of GPUs of *gpu_type*, or a number by type."""
    nodes = (
        Node.of(f"n{i}", {gpu_type: count} if isinstance(count, int) else count, **fields)
        for i, count in enumerate(gpus)
    )
    return Cluster(nodes=tuple(nodes))


def world(machines: Cluster, *jobs: Job, queues: tuple[Queue, ...] = ()) -> ClusterState:
    """A cluster state with these jobs, all pending."""
    state = ClusterState(machines, queues)
    if jobs:
        state.add_jobs(JobBatch.of(jobs))
    return state
