"""Prices instead of a linear program: the accelerator behind `max_min`, `leximin` and `finish_time`."""

from __future__ import annotations

from levada.core.types import Floats
from levada.solve.problem import Warm
from levada.solve.requirements import Speeds

Found = tuple[Floats, float, Floats, str, Warm]


def max_level(
    c: Floats, gpus: Floats, capacity: Floats, pace: Floats, warm: Warm | None
) -> tuple[Floats, float, Floats, str, Warm] | None:
    """Shares, bound, prices, method and warm start of the largest common level; None = ask HiGHS."""
    return None


def leximin(c: Floats, gpus: Floats, capacity: Floats, warm: Warm | None) -> Found | None:
    """Shares of lexicographically largest levels; None = ask HiGHS."""
    return None


def least_ratio(
    given: Speeds, steps: Floats, elapsed: Floats, ideal: Floats, start: float, warm: Warm | None
) -> Found | None:
    """Totals by class at the least finish-time ratio from *start* upwards; None = ask HiGHS."""
    return None
