"""How fast a job's workload is, measured beside what policies believe, as a value for people and programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from levada.core.layout import NOT_ALLOWED
from levada.core.types import CPU_TYPE
from levada.engine.state import State
from levada.live.records import Record
from levada.perf import Estimator, Point
from levada.perf.model import gpu_fraction

#: Sizes that were not measured are shown up to so many doublings.
_DOUBLINGS = 10


def curve(record: Record, state: State) -> dict[str, Any]:
    """Speeds of the job's workload by GPU type and size, and what changes of its workers cost.

    `measured` is what was seen, `fitted` what is believed: the same, or what the curve says where nothing was seen.
    """
    slot = state.world.slot(record.id)
    table = state.world.table
    held = int(table.held[slot]) if slot >= 0 else 0
    told: dict[str, Any] = {
        "job": record.id,
        "workload": record.about.workload,
        "now": {"gpu_type": state.world.inventory.types[int(table.held_type[slot])], "workers": held} if held else None,
        "points": [],
        "costs": [],
    }
    perf, workload = state.beliefs(), state.world.workloads.find(record.about.workload)
    if workload < 0 or not isinstance(perf, Estimator):
        return told
    told["costs"] = [
        {"change": kind.value, "seconds": round(mean, 3), "times": times}
        for kind, (mean, times) in perf.pauses(workload).items()
    ]
    points = perf.points(workload)
    if points:
        sizes = _sizes(record, state, slot)
        launch = record.about.launch
        part = 1.0 if launch is None else gpu_fraction(launch.gpus_milli)
        for kind in _types(state, slot, points):
            name = state.world.inventory.types[kind]
            told["points"] += [
                {"gpu_type": name, **point} for point in _of_type(perf, workload, kind, sizes, points, part)
            ]
    return told


def _types(state: State, slot: int, points: list[Point]) -> list[int]:
    """Types that it was seen on, and those that it may have next."""
    seen = {point.gpu_type for point in points}
    if slot < 0:
        return sorted(seen)
    world = state.world
    if not world.table.milli[slot]:
        return sorted(seen | {CPU_TYPE})
    there = set(world.inventory.type_of[~world.inventory.absent].tolist())
    return sorted(seen | {kind for kind in there if world.table.preference[kind, slot] != NOT_ALLOWED})


def _sizes(record: Record, state: State, slot: int) -> set[int]:
    """Sizes that the job could have."""
    launch = record.about.launch
    least, most = (1, 1) if launch is None else (launch.min_workers, launch.max_workers)
    if slot >= 0:
        least, most = int(state.world.table.min[slot]), int(state.world.table.max[slot])
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
