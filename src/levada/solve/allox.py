"""AlloX: jobs of one GPU in the order and on the types that make the sum of completion times least."""

from __future__ import annotations

import msgspec

from levada.core.types import Floats, Ints


class Queues(msgspec.Struct, frozen=True):
    """For every job the type it runs on and how many jobs of that GPU's queue come after it, itself included."""

    gpu_type: Ints  #: (jobs,): -1 = nowhere
    position: Ints  #: (jobs,): from the end, 1 = last; the jobs with the largest numbers run first
    gpu: Ints  #: (jobs,): which GPU of the type, from 0
    cost: float  #: the sum of position x time


def assign(time: Floats, capacity: Ints) -> Queues:
    """The queues with the least sum of completion times; *time* (jobs, types) is each job's run time, inf = never."""
    raise NotImplementedError
