"""Sums of floats in order: numpy adds in blocks, which changes the last digits."""

from __future__ import annotations

from levada.core.types import Floats
from levada.kernels.registry import kernel


@kernel
def total(values: Floats) -> float:
    """The sum of *values*, added in order."""
    result = 0.0
    for value in values:
        result += value
    return result
