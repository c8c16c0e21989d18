"""Speed curve of a job's workload: measured and fitted rates, costs of resizing."""

from __future__ import annotations

import numpy as np

from levada.api.types import CurveView, PointView
from levada.core.types import CPU_TYPE
from levada.engine.queries import JobState, Queries
from levada.live.records import JobRecord
from levada.perf import Estimator, Point
from levada.perf.model import gpu_fraction

#: Powers of two that are shown besides measured sizes.
_DOUBLINGS = 10


def curve(record: JobRecord, query: Queries) -> CurveView:
    """Return rates of the job's workload by GPU type and size, and pauses by kind of change.

    `measured`: observed rate; `fitted`: rate that policies use, taken from the fitted curve for unmeasured sizes.
    """
    job, types = query.job(record.id), query.cluster.types
    view: CurveView = {
        "job": record.id,
        "workload": record.about.workload,
        "now": {"gpu_type": types[job.held_type], "workers": job.held} if job is not None and job.held else None,
        "points": [],
        "costs": [],
    }
    perf, workload = query.beliefs(), query.workloads.find(record.about.workload)
    if workload < 0 or not isinstance(perf, Estimator):
        return view
    view["costs"] = [
        {"change": kind.value, "seconds": round(mean, 3), "times": times}
        for kind, (mean, times) in perf.pauses(workload).items()
    ]
    points = perf.points(workload)
    if points:
        sizes = _sizes(record, job)
        launch = record.about.launch
        part = 1.0 if launch is None else gpu_fraction(launch.gpus_milli)
        for kind in _types(query, job, points):
            view["points"] += _of_type(perf, workload, kind, types[kind], sizes, points, part)
    return view


def _types(query: Queries, job: JobState | None, points: list[Point]) -> list[int]:
    """Return the GPU types it was measured on and those it may get."""
    measured = {point.gpu_type for point in points}
    if job is None:
        return sorted(measured)
    if not job.milli:
        return sorted(measured | {CPU_TYPE})
    return sorted(measured | (query.cluster.types_present() & query.allowed_types(job.number)))


def _sizes(record: JobRecord, job: JobState | None) -> set[int]:
    """Return sizes within the range of the job: 1, min, max and powers of two."""
    launch = record.about.launch
    least, most = (1, 1) if launch is None else (launch.min_workers, launch.max_workers)
    if job is not None:
        least, most = job.min, job.max
    doubled = {1 << step for step in range(_DOUBLINGS)}
    return {1, least, most} | {size for size in doubled if least <= size <= most}


def _of_type(
    perf: Estimator, workload: int, kind: int, gpu_type: str, sizes: set[int], points: list[Point], part: float
) -> list[PointView]:
    """Return the points of one GPU type; *part*: fraction of a GPU per worker."""
    measured = {point.workers: point for point in points if point.gpu_type == kind}
    shown, workloads = sorted(sizes | set(measured)), np.array(workload)
    rates, confidences = perf.believed(workloads, np.array(kind), np.array(shown))
    one = float(perf.believed(workloads, np.array(kind), np.array(1))[0])
    rows: list[PointView] = []
    for size, rate, confidence in zip(shown, rates.tolist(), confidences.tolist(), strict=True):
        point = measured.get(size)
        rows.append(
            {
                "gpu_type": gpu_type,
                "workers": size,
                "measured": None if point is None else _short(point.rate * part),
                "fitted": _short(rate * part),
                "measured_speedup": None if point is None else _short(point.rate / one),
                "speedup": _short(rate / one),
                "confidence": round(confidence, 3),
                "seconds": None if point is None else round(point.weight_s, 1),
            }
        )
    return rows


def _short(value: float) -> float:
    """Round to five significant digits, the precision of a measurement."""
    return float(f"{value:.5g}")
