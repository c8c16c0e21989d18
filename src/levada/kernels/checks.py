"""Range checks of the input and output of solvers."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats
from levada.kernels.registry import kernel


@kernel
def sane(rate: Floats, weight: Floats, scale: Floats, capacity: Floats) -> bool:
    """Whether rates and capacities are finite and >= 0, and weights and scales finite and > 0."""
    for i in range(len(weight)):
        if not (0.0 < weight[i] < np.inf and 0.0 < scale[i] < np.inf):
            return False
        for k in range(len(capacity)):
            if not 0.0 <= rate[i, k] < np.inf:
                return False
    for k in range(len(capacity)):  # noqa: SIM110 numba compiles loops, not generators
        if not 0.0 <= capacity[k] < np.inf:
            return False
    return True


@kernel
def feasible(share: Floats, scale: Floats, capacity: Floats, slack: float) -> bool:
    """Whether shares (jobs, types) are finite, not negative and within time and GPUs.

    A job has *scale* GPUs; *slack* is the relative excess that is accepted.
    """
    use = np.zeros(len(capacity))
    for i in range(len(share)):
        time = 0.0
        for k in range(len(capacity)):
            if not 0.0 <= share[i, k] < np.inf:
                return False
            time += share[i, k]
            use[k] += scale[i] * share[i, k]
        if time > 1.0 + slack:
            return False
    for k in range(len(capacity)):  # noqa: SIM110 as above
        if use[k] > capacity[k] * (1.0 + slack):
            return False
    return True
