"""Sums of floats in the order in which they stand: numpy's own adds in blocks, and so to other last digits."""

from __future__ import annotations

from levada.core.types import Floats
from levada.kernels.registry import kernel


@kernel
def total(values: Floats) -> float:
    """The sum of *values*, added one after the other."""
    result = 0.0
    for value in values:
        result += value
    return result
