"""Spread shares evenly over GPU types where only a job's whole time counts, not the type it is spent on.

A linear program over types that all count the same has many optima, and a solver returns some corner: all jobs on the
type that happens to come first. Here every job keeps its whole time, and each type gets a part of it in proportion to
its size. Where jobs that cannot use all types would overfill one, the others give way on it (iterative proportional
fitting: the shares nearest to proportional ones, in entropy, that fit).
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats
from levada.solve.problem import fit

#: Iterations at most, and the excess over capacity at which they end.
_ITERATIONS, _EXCESS = 500, 1e-9
#: With more excess than this at the end, the shares stay as the solver found them.
_TOO_MUCH = 1e-3


def evenly(share: Floats, gpus: Floats, capacity: Floats, able: Bools) -> Floats:
    """(jobs, types): *share* with each job's sum over types as it is, spread over the types where it is *able* to run.

    *gpus* is what each job takes while it runs. O(jobs x types) per iteration; one is enough where all run anywhere.
    """
    whole = share.sum(axis=1)
    part = np.where(able, capacity, 0.0)
    runs = (part.sum(axis=1) > 0) & (whole > 0)
    if not runs.any():
        return share
    part, whole, need = part[runs], whole[runs], gpus[runs]
    room = capacity - gpus[~runs] @ share[~runs]
    weight = np.ones(len(capacity))
    for _ in range(_ITERATIONS):
        spread = part * weight
        spread *= (whole / spread.sum(axis=1))[:, None]
        use = need @ spread
        excess = np.divide(use, room, out=np.zeros_like(use), where=room > 0)
        if excess.max(initial=0.0) <= 1.0 + _EXCESS:
            break
        weight = np.minimum(weight / np.where(excess > 0, excess, 1.0), 1.0)
    if excess.max(initial=0.0) > 1.0 + _TOO_MUCH:
        return share
    found = share.copy()
    found[runs] = spread
    return fit(found, gpus, capacity)
