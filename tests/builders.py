"""Short ways to make jobs, clusters and worlds in tests."""

from __future__ import annotations

from typing import Any

from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Node
from levada.core.job import Job
from levada.core.queue import Queue
from levada.tables.world import World


def job(name: str, submitted: float = 0.0, **fields: Any) -> Job:
    """A job; `max` follows `min` unless given."""
    fields.setdefault("max", fields.get("min", 1))
    return Job(id=name, submitted=submitted, **fields)


def cluster(*gpus: dict[str, int] | int, gpu_type: str = "v100", **fields: Any) -> Cluster:
    """One node per argument: so many GPUs of one type, or a count by type."""
    nodes = (
        Node.of(f"n{i}", {gpu_type: count} if isinstance(count, int) else count, **fields)
        for i, count in enumerate(gpus)
    )
    return Cluster(nodes=tuple(nodes))


def world(machines: Cluster, *jobs: Job, queues: tuple[Queue, ...] = ()) -> World:
    """A world with these jobs, all pending."""
    made = World(machines, queues)
    if jobs:
        made.add_jobs(JobBatch.of(jobs))
    return made
