"""`kernels.view`, compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

_WHOLE = 1000
_NOT_ALLOWED = 32767
_CPU = 0


@numba.njit(cache=True)
def supply(known: Any, capacity: Any) -> Any:
    found = known.copy()
    for kind in range(len(capacity)):
        if capacity[kind] > 0:
            found[0, kind] = 1
        found[2, kind] = max(found[2, kind], capacity[kind])
    return found


@numba.njit(cache=True)
def jobs(
    ints: Any, floats: Any, slots: Any, columns: Any, preference: Any, places: Any, exists: Any, capacity: Any
) -> Any:
    number, least, most, step, desired, milli, cpu, kind, count, weight, running = columns
    types = len(capacity)
    numbers = np.empty((6, len(slots)), np.int64)
    reals = np.empty((2, len(slots)), np.float64)
    allowed = np.empty((len(slots), types), np.bool_)
    for row in range(len(slots)):
        s = slots[row]
        unit = ints[milli, s] if ints[milli, s] > 0 else ints[cpu, s]
        at_most = 0
        for k in range(types):
            allowed[row, k] = exists[k] > 0 and preference[k, places[row]] != _NOT_ALLOWED
            if allowed[row, k]:
                at_most = max(at_most, capacity[k] // max(unit, 1))
        low = ints[least, s]
        inside = min(max(min(ints[desired, s], at_most), low), ints[most, s])
        numbers[0, row] = ints[number, s]
        numbers[1, row] = low + (inside - low) // ints[step, s] * ints[step, s]
        numbers[2, row] = unit
        numbers[3, row] = ints[kind, s] if ints[count, s] > 0 else -1
        numbers[4, row] = low
        numbers[5, row] = ints[milli, s]
        reals[0, row] = floats[weight, s]
        reals[1, row] = floats[running, s]
    return numbers, reals, allowed


@numba.njit(cache=True)
def amounts(jobs: Any, ints: Any, slots: Any, columns: Any, capacity: Any) -> Any:
    entity, workload, servers = columns
    scale, room = np.empty(len(slots), np.float64), np.empty(len(capacity), np.float64)
    alike = np.empty((3, len(slots)), np.int64)
    cores, nothing = 0, 0
    for row in range(len(slots)):
        s, unit, milli = slots[row], jobs[2, row], jobs[5, row]
        milli_gpus = jobs[1, row] * max(unit, 1)
        scale[row] = milli_gpus / _WHOLE
        if milli == 0:
            cores += milli_gpus
        if unit == 0:
            nothing += milli_gpus
        alike[0, row], alike[1, row] = ints[entity, s], ints[workload, s]
        alike[2, row] = milli == _WHOLE and ints[servers, s] == 0
    for kind in range(len(capacity)):
        room[kind] = capacity[kind] / _WHOLE
    room[_CPU] = min(room[_CPU], cores / _WHOLE) + nothing / _WHOLE
    return scale, room, alike
