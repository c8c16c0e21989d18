"""How fast jobs really are where they are: on one node or several, on parts of a GPU, beside another job."""

from __future__ import annotations

import numpy as np

from levada.core.plane import DEVICE, MILLI, SLOT
from levada.core.types import WHOLE, Bools, Floats, Ints
from levada.engine.queries import PlaneView, Queries
from levada.perf import Beliefs, ThroughputModel


def bind_truth(truth: Beliefs, query: Queries, numbers: Ints) -> None:
    """Binds new jobs to their workloads in the truth; the engine binds them in its own model only."""
    if len(numbers) and not query.believes_in(truth):
        jobs = query.jobs
        truth.bind(numbers, jobs.workload.take(jobs.find(numbers)))


def planned_rates(truth: ThroughputModel, query: Queries, numbers: Ints, types: Ints, workers: Ints) -> Floats:
    """Steps per second of these jobs, each by itself, at the places that they should have."""
    plane = query.target
    if not plane.has_rows and max(workers.tolist()) <= 1:
        return truth.rates(numbers, types, workers)  # one worker with whole GPUs is on one node
    return rates(truth, query, plane, query.jobs.find(numbers), types, workers)


def rates(truth: ThroughputModel, query: Queries, plane: PlaneView, slots: Ints, types: Ints, workers: Ints) -> Floats:
    """Steps per second of the jobs in *slots*, each by itself at its places on *plane*."""
    jobs = query.jobs
    numbers, milli = jobs.number.take(slots), jobs.milli.take(slots)
    found = truth.rates(numbers, types, workers)
    nodes = plane.node_counts(slots)
    odd = (nodes > 1) | (milli < WHOLE)
    for row in odd.nonzero()[0].tolist():
        # A worker without a GPU has its own speed, not none.
        part = int(milli[row]) or WHOLE
        found[row] = truth.rate(int(numbers[row]), int(types[row]), int(workers[row]), int(nodes[row]), part)
    return found


def is_packed(query: Queries, plane: PlaneView) -> Bools:
    """By slot: the job has parts of GPUs though it asked for whole ones, for another one shares them."""
    marks = np.zeros(query.jobs.capacity, bool)
    rows = plane.rows
    if rows.shape[1]:
        parts = rows[:, (rows[DEVICE] >= 0) & (rows[MILLI] < WHOLE)]
        marks[parts[SLOT]] = query.jobs.milli[parts[SLOT]] >= WHOLE
    return marks


def couples(query: Queries, runs: Bools) -> list[tuple[int, int]]:
    """Slots of the packed jobs that run (by slot) on one device, two by two, the lower number first."""
    rows, packed = query.held.rows, is_packed(query, query.held)
    on: dict[int, list[int]] = {}
    for slot, device in zip(rows[SLOT].tolist(), rows[DEVICE].tolist(), strict=True):
        if device >= 0 and packed[slot] and runs[slot]:
            on.setdefault(device, []).append(slot)
    number = query.jobs.number
    found = {tuple(sorted(set(slots), key=lambda slot: int(number[slot]))) for slots in on.values()}
    return sorted(pair for pair in found if len(pair) == 2)


def pair_rates(truth: ThroughputModel, query: Queries, pairs: list[tuple[int, int]]) -> Floats:
    """Steps per second of both, one row for each pair of slots."""
    jobs, (a, b) = query.jobs, np.array(pairs, np.int64).T
    return truth.pair_rates(jobs.number[a], jobs.number[b], jobs.held_type[a], jobs.held[a])
