"""`kernels.turns` in numba."""

from __future__ import annotations

import numpy as np
from numba import njit

from levada.kernels.arrays import Bools, Floats, Ints


@njit(cache=True)
def take_turns(priority: Floats, need: Ints, members: Ints, left: Ints, taken: Bools) -> Ints:
    types = priority.shape[1]
    runs = np.full(len(priority), -1, np.int64)
    able = np.empty(priority.size, np.int64)
    keys = np.empty(priority.size, np.float64)
    count = 0
    for row in range(len(priority)):
        for kind in range(types):
            if priority[row, kind] > -np.inf:
                able[count] = row * types + kind
                keys[count] = -priority[row, kind]
                count += 1
    order = np.argsort(keys[:count], kind="mergesort")
    for place in order:
        row, kind = able[place] // types, able[place] % types
        a, b = members[row, 0], members[row, 1]
        if need[row] > left[kind] or taken[a] or (b >= 0 and taken[b]):
            continue
        left[kind] -= need[row]
        taken[a] = True
        if b >= 0:
            taken[b] = True
        runs[row] = kind
    return runs
