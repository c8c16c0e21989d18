"""AlloX: order and types of one-GPU jobs with the least sum of completions.

A job at position l from the end of a GPU's queue delays l jobs, including itself, by its run time. GPUs of a type are
identical, so a slot is a type and a position, with room for as many jobs as the type has GPUs: an exact transportation
problem, much smaller than one with a column per GPU.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels import slots


class Queues(msgspec.Struct, frozen=True):
    """The GPU of each job, and its position in the queue of that GPU."""

    gpu_type: Ints  #: (jobs,): -1 = none
    gpu: Ints  #: (jobs,): GPU of the type, from 0
    position: Ints  #: (jobs,): from the end of the queue, 1 = last
    cost: float  #: the sum of completion times: position x time over all jobs

    def first(self) -> Ints:
        """The jobs that run now: the first of each queue."""
        placed = np.flatnonzero(self.gpu_type >= 0)
        order = placed[np.lexsort((-self.position[placed], self.gpu[placed], self.gpu_type[placed]))]
        new = np.ones(len(order), np.bool_)
        new[1:] = (np.diff(self.gpu_type[order]) != 0) | (np.diff(self.gpu[order]) != 0)
        return np.sort(order[new])


def assign(time: Floats, capacity: Ints) -> Queues:
    """Minimize the sum of completion times; *time* (jobs, types): run times, inf = cannot run."""
    time = np.where((capacity > 0) & (time >= 0), time, np.inf)
    gpu_type, gpu, position = (np.full(len(time), start, np.int64) for start in (-1, -1, 0))
    placed = np.flatnonzero(np.isfinite(time).any(axis=1))
    if not len(placed):
        return Queues(gpu_type, gpu, position, 0.0)
    depth = np.where(capacity > 0, -(-len(placed) // np.maximum(capacity, 1)), 0).astype(np.int64)
    kinds = np.repeat(np.arange(len(depth)), depth)
    positions = np.arange(len(kinds)) - np.repeat(np.cumsum(depth) - depth, depth) + 1
    run_time = time[placed]
    # Longest first: they are last in their queues, so few jobs move when others are added.
    order = np.argsort(-run_time.min(axis=1), kind="stable")
    slot = slots.cheapest_slots(run_time, kinds, positions, capacity[kinds].astype(np.int64), order)
    gpu_type[placed], position[placed] = kinds[slot], positions[slot]
    by_slot = np.argsort(slot, kind="stable")
    counts = np.bincount(slot, minlength=len(kinds))
    gpu[placed[by_slot]] = np.arange(len(slot)) - np.repeat(np.cumsum(counts) - counts, counts)
    return Queues(gpu_type, gpu, position, float((run_time[np.arange(len(slot)), kinds[slot]] * positions[slot]).sum()))


def first_in_queue(time: Floats, waited: Floats) -> tuple[float, dict[int, int]]:
    """The minimal cost, and the first job (row) of each queue (column of *time*).

    *time* (jobs, GPUs) is the run time of each job on each GPU, *waited* the time since its submission. The matrix has
    a column for every position in the queue of every GPU, as published. `assign` finds the same cost much faster, but
    treats GPUs of a type as identical, which changes the choice between equally good jobs.
    """
    from scipy.optimize import linear_sum_assignment

    jobs, gpus = time.shape
    position = np.arange(1, jobs + 1)
    cost = (position[None, :, None] * time[:, None, :]).reshape(jobs, -1) + waited[:, None]
    at, column = linear_sum_assignment(cost)
    first: dict[int, tuple[int, int]] = {}
    for job, slot in zip(at.tolist(), column.tolist(), strict=True):
        from_end, gpu = slot // gpus, slot % gpus
        first[gpu] = max(first.get(gpu, (-1, -1)), (from_end, job))
    return float(cost[at, column].sum()), {gpu: job for gpu, (_, job) in first.items()}
