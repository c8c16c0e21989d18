"""Generate clusters and jobs of any size, deterministic for a seed.

Nodes have 8 GPUs of one of three types. Workers use 1, 2, 4 or 8 GPUs; a job has a minimum of 1 to 16 workers and a
maximum of up to four times as many; most jobs run on any type, some on two or one. Per GPU a worker requests 8 of the
12 cores and 60 of the 96 GiB of its node. At ten GPUs per job the minimums sum up to 1.5 times the cluster: a
large part of the jobs runs, the rest is pending.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from levada.core.batch import JobBatch
from levada.core.cluster import Cluster, Node

GPUS_PER_NODE = 8
#: Capacity of a node and request of a worker, per GPU: millicores, MiB.
NODE_CPU, NODE_MEMORY = 12_000, 96 * 1024
WORKER_CPU, WORKER_MEMORY = 8_000, 60 * 1024
TYPES = ("v100", "a100", "h100")
WORKLOADS = tuple(f"workload-{number}" for number in range(20))

_TYPE_LISTS: tuple[tuple[str, ...], ...] = ((), ("a100", "v100"), ("h100", "a100"), ("v100",), ("h100",))


def cluster(gpus: int) -> Cluster:
    """Return a cluster of 1/2 v100, 1/3 a100 and 1/6 h100 nodes, in racks of 16."""
    kinds = (0, 0, 0, 1, 1, 2)
    return Cluster(
        nodes=tuple(
            Node.of(
                f"node-{i}",
                {TYPES[kinds[i % len(kinds)]]: GPUS_PER_NODE},
                labels={"rack": f"rack-{i // 16}"},
                cpu=NODE_CPU * GPUS_PER_NODE,
                memory=NODE_MEMORY * GPUS_PER_NODE,
            )
            for i in range(gpus // GPUS_PER_NODE)
        )
    )


def jobs(count: int, rng: np.random.Generator, *, at: float, first: int) -> JobBatch:
    """Return *count* new jobs, numbered from *first*, all submitted at *at*."""
    least = rng.choice([1, 2, 4, 8, 16], count, p=[0.2, 0.25, 0.25, 0.2, 0.1])
    gpus = rng.choice([1, 2, 4, 8], count, p=[0.4, 0.25, 0.2, 0.15])
    most = least * rng.choice([1, 2, 4], count)
    columns: dict[str, np.ndarray[Any, Any]] = {
        "submitted": np.full(count, at),
        "min": least,
        "max": most,
        "desired": np.minimum(least * 2, most),
        "milli": 1000 * gpus,
        "cpu": WORKER_CPU * gpus,
        "memory": WORKER_MEMORY * gpus,
        "priority": rng.integers(0, 3, count),
        # 20 % do not declare their steps, a third resizes only by restart.
        "steps": np.where(rng.random(count) < 0.8, rng.lognormal(11.0, 1.5, count).round(), np.nan),
        "resizes_in_place": (rng.random(count) < 2 / 3).astype(np.int64),
    }
    lists = rng.choice(len(_TYPE_LISTS), count, p=[0.6, 0.1, 0.1, 0.1, 0.1])
    kinds = rng.integers(0, len(WORKLOADS), count)
    return JobBatch(
        id=tuple(f"job-{number}" for number in range(first, first + count)),
        columns=columns,
        gpu_types=tuple(_TYPE_LISTS[number] for number in lists) if count > 1 else (_TYPE_LISTS[int(lists[0])],),
        workload=tuple(WORKLOADS[number] for number in kinds),
    )


def speeds(numbers: np.ndarray[Any, Any], workloads: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return steps per second of one worker; they differ by workload, and slightly by job."""
    return (1.0 + workloads % 7) * (1.0 + 0.05 * (numbers % 5 - 2))
