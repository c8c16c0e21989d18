"""Voda's cases as worlds: one GPU type, one GPU per worker."""

from __future__ import annotations

import math
from typing import Any

from levada.core.decision import Decision
from levada.perf.table_model import JobSpeed, TableModel
from levada.policies import registry
from levada.policies.attained_service import state_in_queues
from levada.tables.cluster_state import ClusterState
from tests.builders import cluster, job, world


def decide(case: dict[str, Any], **options: Any) -> tuple[dict[str, int], Decision]:
    """What the policy of *case* gives each job, by name, and the decision itself."""
    there, perf = world_of(case)
    policy = registry.make(case["algorithm"], options)
    snap = there.snapshot(1000.0)
    state = policy.initial(0)
    if case["algorithm"].endswith("Tiresias"):
        state = state_in_queues(snap, snap.jobs.priority)
    result, _ = policy.decide(snap, perf, state)
    names = [there.ids[int(number)] for number in result.number]
    return dict(zip(names, result.count.tolist(), strict=True)), result


def world_of(case: dict[str, Any]) -> tuple[ClusterState, TableModel]:
    """The world of a case, and the speeds it gives."""
    rows = case["jobs"]
    created = [
        job(
            row["name"],
            row["submit_time"],
            min=row["min_num_proc"],
            max=row["max_num_proc"],
            desired=row["num_proc"],
            steps=row["remaining_time_sec"],
            priority=row["priority"],
            gpu_types=("v100",),
        )
        for row in rows
    ]
    there = world(cluster(case["total_gpus"]), *created)
    for row in rows:
        started = row["first_start_time"]
        there.table.first_started[there.slot(row["name"])] = math.inf if started is None else started
    speeds = [
        JobSpeed(job=there.numbers[row["name"]], speedup={int(n): s for n, s in row["speedup"].items()}) for row in rows
    ]
    return there, TableModel(speeds)


def row(
    name: str,
    submit_time: float,
    least: int,
    most: int,
    *,
    asked: int | None = None,
    remaining: float = 0.0,
    queue: int = 0,
    started: float | None = None,
    speedup: list[float] | None = None,
) -> dict[str, Any]:
    """One job of a case; linear speed-up unless given from one worker on."""
    curve = speedup if speedup is not None else [float(n) for n in range(1, most + 2)]
    return {
        "name": name,
        "submit_time": submit_time,
        "num_proc": least if asked is None else asked,
        "min_num_proc": least,
        "max_num_proc": most,
        "priority": queue,
        "first_start_time": started,
        "remaining_time_sec": remaining,
        "speedup": {str(n): s for n, s in enumerate(curve, start=1)},
    }
