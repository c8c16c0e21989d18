"""How fast a job's workload is, measured beside what policies believe, as a value for people and programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from levada.core.types import CPU_TYPE
from levada.engine.queries import JobState, Queries
from levada.live.records import Record
from levada.perf import Estimator, Point
from levada.perf.model import gpu_fraction

#: Sizes that were not measured are shown up to so many doublings.
_DOUBLINGS = 10


def curve(record: Record, query: Queries) -> dict[str, Any]:
    """Speeds of the job's workload by GPU type and size, and what changes of its workers cost.

    `measured` is what was seen, `fitted` what is believed: the same, or what the curve says where nothing was seen.
    """
    job, types = query.job(record.id), query.cluster.types
    told: dict[str, Any] = {
        "job": record.id,
        "workload": record.about.workload,
        "now": {"gpu_type": types[job.held_type], "workers": job.held} if job is not None and job.held else None,
        "points": [],
        "costs": [],
    }
    perf, workload = query.beliefs(), query.workloads.find(record.about.workload)
    if workload < 0 or not isinstance(perf, Estimator):
        return told
    told["costs"] = [
        {"change": kind.value, "seconds": round(mean, 3), "times": times}
        for kind, (mean, times) in perf.pauses(workload).items()
    ]
    points = perf.points(workload)
    if points:
        sizes = _sizes(record, job)
        launch = record.about.launch
        part = 1.0 if launch is None else gpu_fraction(launch.gpus_milli)
        for kind in _types(query, job, points):
            name = types[kind]
            told["points"] += [
                {"gpu_type": name, **point} for point in _of_type(perf, workload, kind, sizes, points, part)
            ]
    return told


def _types(query: Queries, job: JobState | None, points: list[Point]) -> list[int]:
    """Types that it was seen on, and those that it may have next."""
    seen = {point.gpu_type for point in points}
    if job is None:
        return sorted(seen)
    if not job.milli:
        return sorted(seen | {CPU_TYPE})
    return sorted(seen | (query.cluster.types_present() & query.allowed_types(job.number)))


def _sizes(record: Record, job: JobState | None) -> set[int]:
    """Sizes that the job could have."""
    launch = record.about.launch
    least, most = (1, 1) if launch is None else (launch.min_workers, launch.max_workers)
    if job is not None:
        least, most = job.min, job.max
    doubled = {1 << step for step in range(_DOUBLINGS)}
    return {1, least, most} | {size for size in doubled if least <= size <= most}


def _of_type(
    perf: Estimator, workload: int, kind: int, sizes: set[int], points: list[Point], part: float
) -> list[dict[str, Any]]:
    """Speeds of a job whose workers have this part of a GPU."""
    seen = {point.workers: point for point in points if point.gpu_type == kind}
    shown, of = sorted(sizes | set(seen)), np.array(workload)
    rates, sure = perf.believed(of, np.array(kind), np.array(shown))
    one = float(perf.believed(of, np.array(kind), np.array(1))[0])
    found = []
    for size, rate, confidence in zip(shown, rates.tolist(), sure.tolist(), strict=True):
        point = seen.get(size)
        found.append(
            {
                "workers": size,
                "measured": None if point is None else _short(point.rate * part),
                "fitted": _short(rate * part),
                "measured_speedup": None if point is None else _short(point.rate / one),
                "speedup": _short(rate / one),
                "confidence": round(confidence, 3),
                "seconds": None if point is None else round(point.weight_s, 1),
            }
        )
    return found


def _short(value: float) -> float:
    """Five digits: nobody measures better."""
    return float(f"{value:.5g}")
