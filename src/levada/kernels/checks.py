"""Whether the numbers that go into a solver and come out of it can be."""

from __future__ import annotations

from levada.kernels.arrays import Floats
from levada.kernels.switch import kernels


def sane(rate: Floats, weight: Floats, scale: Floats, capacity: Floats) -> bool:
    """Whether rates and capacities are finite and not below 0, weights and scales finite and above 0."""
    return bool(kernels["checks"].sane(rate, weight, scale, capacity))


def feasible(share: Floats, scale: Floats, capacity: Floats, slack: float) -> bool:
    """Whether shares (jobs, types) of jobs of *scale* GPUs are finite, not below 0, and take no more than all of the
    time and of the GPUs, but for the part *slack*."""
    return bool(kernels["checks"].feasible(share, scale, capacity, slack))
