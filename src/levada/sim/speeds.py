"""True speed of jobs by placement: spread, on fractions of a GPU, or packed."""

from __future__ import annotations

import numpy as np

from levada.core.assignment import DEVICE, MILLI, SLOT
from levada.core.types import WHOLE, Bools, Floats, Ints
from levada.engine.queries import PlaneView, Queries
from levada.perf import Beliefs, ThroughputModel


def bind_truth(truth: Beliefs, query: Queries, numbers: Ints) -> None:
    """Bind new jobs to their workloads in the true model; the engine binds them only in its own."""
    if len(numbers) and not query.believes_in(truth):
        jobs = query.jobs
        truth.bind(numbers, jobs.workload.take(jobs.find(numbers)))


def planned_rates(truth: ThroughputModel, query: Queries, numbers: Ints, types: Ints, workers: Ints) -> Floats:
    """Steps per second of these jobs at their target placement, each without a partner."""
    plane = query.target
    if not plane.has_rows and max(workers.tolist()) <= 1:
        return truth.rates(numbers, types, workers)  # one worker with whole GPUs is on one node
    return rates(truth, query, plane, query.jobs.find(numbers), types, workers)


def rates(truth: ThroughputModel, query: Queries, plane: PlaneView, slots: Ints, types: Ints, workers: Ints) -> Floats:
    """Steps per second of the jobs in *slots* at their placement on *plane*, each without a partner."""
    jobs = query.jobs
    numbers, milli = jobs.number.take(slots), jobs.milli.take(slots)
    result = truth.rates(numbers, types, workers)
    for row, (nodes, part) in enumerate(zip(plane.node_counts(slots).tolist(), milli.tolist(), strict=True)):
        if nodes > 1 or part < WHOLE:
            # A worker without a GPU (part 0) runs at full speed.
            result[row] = truth.rate(int(numbers[row]), int(types[row]), int(workers[row]), nodes, part or WHOLE)
    return result


def is_packed(query: Queries, plane: PlaneView) -> Bools:
    """By slot: whether the job shares GPUs with another job although it asked for whole ones."""
    marks = np.zeros(query.jobs.capacity, bool)
    rows = plane.rows
    if rows.shape[1]:
        parts = rows[:, (rows[DEVICE] >= 0) & (rows[MILLI] < WHOLE)]
        marks[parts[SLOT]] = query.jobs.milli[parts[SLOT]] >= WHOLE
    return marks


def packed_pairs(query: Queries, running: Bools) -> list[tuple[int, int]]:
    """Pairs of slots of packed, *running* jobs on the same device, the lower job number first."""
    rows, packed = query.held.rows, is_packed(query, query.held)
    by_device: dict[int, list[int]] = {}
    for slot, device in zip(rows[SLOT].tolist(), rows[DEVICE].tolist(), strict=True):
        if device >= 0 and packed[slot] and running[slot]:
            by_device.setdefault(device, []).append(slot)
    number = query.jobs.number
    groups = {tuple(sorted(set(slots), key=lambda slot: int(number[slot]))) for slots in by_device.values()}
    return sorted(group for group in groups if len(group) == 2)


def pair_rates(truth: ThroughputModel, query: Queries, pairs: list[tuple[int, int]]) -> Floats:
    """Steps per second of both jobs, one row per pair of slots."""
    jobs, (a, b) = query.jobs, np.array(pairs, np.int64).T
    return truth.pair_rates(jobs.number[a], jobs.number[b], jobs.held_type[a], jobs.held[a])
