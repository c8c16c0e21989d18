"""AlloX: jobs of one GPU in the order and on the types that make the sum of completion times least.

A job that stands at position l from the end of a GPU's queue delays l jobs, itself included, by its own run time. GPUs
of one type are alike, so a place is a type and a position, with room for as many jobs as the type has GPUs: a
transportation problem that is much smaller than one with a column per GPU, and exact.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels import slots


class Queues(msgspec.Struct, frozen=True):
    """For every job the GPU it runs on, and how many jobs of that GPU's queue it delays, itself included."""

    gpu_type: Ints  #: (jobs,): -1 = nowhere
    gpu: Ints  #: (jobs,): which GPU of the type, from 0
    position: Ints  #: (jobs,): from the end of the queue, 1 = last
    cost: float  #: the sum of completion times: position x time over all jobs

    def first(self) -> Ints:
        """The jobs that run now, one per GPU: those that no job of their queue comes before."""
        placed = np.flatnonzero(self.gpu_type >= 0)
        order = placed[np.lexsort((-self.position[placed], self.gpu[placed], self.gpu_type[placed]))]
        new = np.ones(len(order), np.bool_)
        new[1:] = (np.diff(self.gpu_type[order]) != 0) | (np.diff(self.gpu[order]) != 0)
        return np.sort(order[new])


def assign(time: Floats, capacity: Ints) -> Queues:
    """The queues with the least sum of completion times; *time* (jobs, types) is each job's run time, inf = never."""
    time = np.where((capacity > 0) & (time >= 0), time, np.inf)
    gpu_type, gpu, position = (np.full(len(time), start, np.int64) for start in (-1, -1, 0))
    placed = np.flatnonzero(np.isfinite(time).any(axis=1))
    if not len(placed):
        return Queues(gpu_type, gpu, position, 0.0)
    depth = np.where(capacity > 0, -(-len(placed) // np.maximum(capacity, 1)), 0).astype(np.int64)
    kinds = np.repeat(np.arange(len(depth)), depth)
    places = np.arange(len(kinds)) - np.repeat(np.cumsum(depth) - depth, depth) + 1
    mine = time[placed]
    # The longest first: they come last in their queues, so that little moves when others come.
    order = np.argsort(-mine.min(axis=1), kind="stable")
    slot = slots.cheapest_slots(mine, kinds, places, capacity[kinds].astype(np.int64), order)
    gpu_type[placed], position[placed] = kinds[slot], places[slot]
    by_slot = np.argsort(slot, kind="stable")
    counts = np.bincount(slot, minlength=len(kinds))
    gpu[placed[by_slot]] = np.arange(len(slot)) - np.repeat(np.cumsum(counts) - counts, counts)
    return Queues(gpu_type, gpu, position, float((mine[np.arange(len(slot)), kinds[slot]] * places[slot]).sum()))
