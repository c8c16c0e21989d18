"""`kernels.rates`, compiled."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from levada.kernels import columns as c

_CPU = 0


@numba.njit(cache=True)
def look_up(table: Any, row_of: Any, column_of: Any, jobs: Any, sizes: Any, types: int) -> Any:
    found = np.empty((len(jobs), types), np.float64)
    for i in range(len(jobs)):
        row = row_of[min(max(jobs[i] + 1, 0), len(row_of) - 1)]
        size = min(max(sizes[i], 0), table.shape[2] - 1)
        for k in range(types):
            found[i, k] = table[row, column_of[min(k + 1, len(column_of) - 1)], size]
    return found


@numba.njit(cache=True)
def look_up_each(table: Any, row_of: Any, column_of: Any, jobs: Any, types: Any, sizes: Any) -> Any:
    found = np.empty(len(jobs), np.float64)
    for i in range(len(jobs)):
        row = row_of[min(max(jobs[i] + 1, 0), len(row_of) - 1)]
        column = column_of[min(max(types[i] + 1, 0), len(column_of) - 1)]
        found[i] = table[row, column, min(max(sizes[i], 0), table.shape[2] - 1)]
    return found


@numba.njit(cache=True)
def hold(rate: Any, allowed: Any, milli: Any) -> Any:
    best = np.zeros(len(rate), np.float64)
    relative = np.empty(rate.shape, np.float64)
    for i in range(len(rate)):
        for k in range(rate.shape[1]):
            if not allowed[i, k]:
                rate[i, k] = 0.0
            elif k == _CPU and milli[i] == 0 and rate[i, k] == 0.0:
                rate[i, k] = 1.0
            if rate[i, k] > best[i]:
                best[i] = rate[i, k]
        for k in range(rate.shape[1]):
            relative[i, k] = rate[i, k] / best[i] if best[i] > 0.0 else rate[i, k]
    return best, relative


@numba.njit(cache=True)
def halvings(floats: Any, slots: Any, scale: Any, best: Any, longest_s: float, most: int) -> Any:
    found = np.zeros(len(slots), np.int64)
    for i in range(len(slots)):
        left = (floats[c.STEPS, slots[i]] - floats[c.STEPS_DONE, slots[i]]) * scale[i]
        if left > 0.0 and best[i] > 0.0:
            found[i] = min(max(-math.frexp(left / (best[i] * longest_s))[1], 0), most)
    return found
