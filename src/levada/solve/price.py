"""Prices instead of a linear program: the accelerator behind `max_min`, `leximin` and `finish_time`."""

from __future__ import annotations

from levada.core.types import Floats
from levada.solve.problem import Warm


def max_level(
    c: Floats, gpus: Floats, capacity: Floats, pace: Floats, warm: Warm | None
) -> tuple[Floats, float, Floats, str, Warm] | None:
    """Shares, bound, prices, method and warm start of the largest common level; None = ask HiGHS."""
    return None
