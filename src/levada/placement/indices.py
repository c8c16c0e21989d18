"""Indices of new workers."""

from __future__ import annotations

import numpy as np

from levada.core.types import Ints


def new_indices(used: Ints, count: int) -> Ints:
    """The *count* smallest worker indices that are not in *used*, ascending.

    Gaps are filled first, so that indices stay below the largest size of the job.
    """
    # At least *count* of the first len(used) + count numbers are free.
    free = np.ones(len(used) + count, bool)
    taken = np.asarray(used, np.int64)
    free[taken[(taken >= 0) & (taken < len(free))]] = False
    return free.nonzero()[0][:count]
