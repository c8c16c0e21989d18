"""`kernels.checks` in numpy."""

from __future__ import annotations

import math

import numpy as np

from levada.kernels.arrays import Floats


def sane(rate: Floats, weight: Floats, scale: Floats, capacity: Floats) -> bool:
    # What is no number is neither above nor below anything.
    natural = all(bool(((each >= 0) & (each < math.inf)).all()) for each in (rate, capacity))
    return natural and all(bool(((each > 0) & (each < math.inf)).all()) for each in (weight, scale))


def feasible(share: Floats, scale: Floats, capacity: Floats, slack: float) -> bool:
    if not ((share >= 0) & (share < math.inf)).all():
        return False
    time, use = np.zeros(len(share)), np.zeros(len(capacity))
    for kind in range(len(capacity)):
        time += share[:, kind]
        use[kind] = (scale * share[:, kind]).sum()
    return bool((time <= 1 + slack).all() and (use <= capacity * (1 + slack)).all())
