"""Short ways to make instances for share policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from levada.perf.model import ThroughputModel
from levada.perf.table_model import JobSpeed, PairSpeed, TableModel
from levada.policies.gavel.instance import Instance
from tests.builders import cluster, job, world


def moment(
    rates: list[list[float]],
    gpus: dict[str, int],
    *,
    scale: list[int] | None = None,
    steps: Sequence[float | None] | None = None,
    pairs: dict[tuple[int, int], list[tuple[float, float]]] | None = None,
    perf: ThroughputModel | None = None,
    now: float = 0.0,
    **fields: list[Any],
) -> Instance:
    """Jobs 0, 1, … with these rates (jobs, types), one node per type."""
    scale = scale or [1] * len(rates)
    names = list(gpus)
    jobs = [
        job(
            f"j{i}",
            min=scale[i],
            steps=None if steps is None else steps[i],
            gpu_types=tuple(name for name, rate in zip(names, row, strict=True) if rate > 0),
            **{"workload": f"w{i}", **{name: values[i] for name, values in fields.items()}},
        )
        for i, row in enumerate(rates)
    ]
    created = world(cluster(*({name: count} for name, count in gpus.items())), *jobs)
    kinds = [created.inventory.types.find(name) for name in names]
    speeds = [
        JobSpeed(job=i, throughput=dict(zip(kinds, row, strict=True)), scale_factor=scale[i])
        for i, row in enumerate(rates)
    ]
    together = [
        PairSpeed(a=a, b=b, throughput=dict(zip(kinds, both, strict=True))) for (a, b), both in (pairs or {}).items()
    ]
    return Instance(created.snapshot(now), perf or TableModel(speeds, together))


def by_name(instance: Instance, share: np.ndarray[Any, Any]) -> list[dict[str, float]]:
    """Shares as people read them."""
    return [
        {instance.names[kind]: round(float(row[kind]), 9) for kind in np.flatnonzero(row).tolist()} for row in share
    ]
