"""Detailed metrics: job classes, queueing, utilization by type, moves, leases."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from levada.core.types import Floats
from levada.sim.metrics import ALL, Outcomes, RunFacts, Window, known, mean, percentiles
from levada.sim.traces.sheet import format_number


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and percentiles in seconds; null if there are no values."""

    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class JobClass(msgspec.Struct, frozen=True, kw_only=True):
    """Measured jobs of one scale, weight or workload."""

    jobs: int
    finished: int
    jct_s: Spread


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """Metrics of `levada sim run` beyond the report."""

    by_scale: dict[str, JobClass]
    by_weight: dict[str, JobClass]
    by_workload: dict[str, JobClass]
    #: From arrival to first start.
    queueing_s: Spread
    utilization: dict[str, float]
    #: Measured jobs that have a deadline.
    deadlines: int
    dropped: int
    resizes: int
    moves: int
    #: Fraction of jobs that kept their GPUs among those that could have; null without rounds.
    lease_extensions: float | None


def detail(jobs: Outcomes, run: RunFacts, window: Window = ALL) -> Detail:
    """Return the detailed metrics of a simulation."""
    rows = window.rows(len(jobs))
    jct_s = jobs.jct_s[rows]
    return Detail(
        by_scale=_classes(list(map(str, jobs.scale[rows].tolist())), jct_s, numeric=True),
        by_weight=_classes(list(map(format_number, jobs.weight[rows].tolist())), jct_s, numeric=True),
        by_workload=_classes(jobs.workload[rows], jct_s),
        queueing_s=spread((jobs.started_s - jobs.arrival_s)[rows]),
        utilization={
            gpu_type: run.used_gpu_s.get(gpu_type, 0.0) / (count * run.end_s) if count and run.end_s > 0 else 0.0
            for gpu_type, count in run.gpus.items()
        },
        deadlines=int(np.count_nonzero(np.isfinite(jobs.deadline_s[rows]))),
        dropped=int(np.count_nonzero(jobs.dropped[rows])),
        resizes=run.resizes,
        moves=run.moves,
        lease_extensions=run.lease_extensions / run.lease_opportunities if run.lease_opportunities else None,
    )


def spread(values: Floats) -> Spread:
    """Return mean and percentiles of the values that are not nan."""
    numbers = known(values)
    p50, p90, p99 = percentiles(numbers)
    return Spread(mean=mean(numbers), p50=p50, p90=p90, p99=p99)


def _classes(names: Sequence[str], jct_s: Floats, *, numeric: bool = False) -> dict[str, JobClass]:
    """Return one class per name, sorted by name."""
    labels = np.array(names, dtype=object)
    classes = {}
    for name in sorted(set(names), key=float if numeric else str):
        of_class = jct_s[labels == name]
        classes[name] = JobClass(jobs=len(of_class), finished=len(known(of_class)), jct_s=spread(of_class))
    return classes
