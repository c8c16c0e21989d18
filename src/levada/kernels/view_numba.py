"""`kernels.view`, compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from levada.kernels import columns as c


@numba.njit(cache=True)
def jobs(ints: Any, floats: Any, slots: Any, preference: Any, places: Any, exists: Any, capacity: Any) -> Any:
    types = len(capacity)
    numbers = np.empty((6, len(slots)), np.int64)
    reals = np.empty((2, len(slots)), np.float64)
    allowed = np.empty((len(slots), types), np.bool_)
    for row in range(len(slots)):
        s = slots[row]
        unit = ints[c.MILLI, s] if ints[c.MILLI, s] > 0 else ints[c.CPU, s]
        at_most = 0
        for k in range(types):
            allowed[row, k] = exists[k] > 0 and preference[k, places[row]] != c.NOT_ALLOWED
            if allowed[row, k]:
                at_most = max(at_most, capacity[k] // max(unit, 1))
        low, step = ints[c.MIN, s], ints[c.STEP, s]
        inside = min(max(min(ints[c.DESIRED, s], at_most), low), ints[c.MAX, s])
        numbers[0, row] = ints[c.NUMBER, s]
        numbers[1, row] = low + (inside - low) // step * step
        numbers[2, row] = unit
        numbers[3, row] = ints[c.TYPE, s] if ints[c.COUNT, s] > 0 else -1
        numbers[4, row] = low
        numbers[5, row] = ints[c.MILLI, s]
        reals[0, row] = floats[c.WEIGHT, s]
        reals[1, row] = floats[c.RUNNING_S, s]
    return numbers, reals, allowed


@numba.njit(cache=True)
def amounts(jobs: Any, ints: Any, slots: Any, capacity: Any) -> Any:
    scale, room = np.empty(len(slots), np.float64), np.empty(len(capacity), np.float64)
    alike = np.empty((3, len(slots)), np.int64)
    cores, nothing = 0, 0
    for row in range(len(slots)):
        s, unit, milli = slots[row], jobs[2, row], jobs[5, row]
        milli_gpus = jobs[1, row] * max(unit, 1)
        scale[row] = milli_gpus / c.WHOLE
        if milli == 0:
            cores += milli_gpus
        if unit == 0:
            nothing += milli_gpus
        alike[0, row], alike[1, row] = ints[c.ENTITY, s], ints[c.WORKLOAD, s]
        alike[2, row] = milli == c.WHOLE and ints[c.SERVERS, s] == 0
    for kind in range(len(capacity)):
        room[kind] = capacity[kind] / c.WHOLE
    room[c.CORES] = min(room[c.CORES], cores / c.WHOLE) + nothing / c.WHOLE
    return scale, room, alike
