"""`kernels.view` in numpy."""

from __future__ import annotations

import numpy as np

from levada.kernels.arrays import Bools, Floats, Ints

_WHOLE = 1000
_NOT_ALLOWED = 32767
_CPU = 0


def supply(known: Ints, capacity: Ints) -> Ints:
    return np.stack([(known[0] > 0) | (capacity > 0), known[1], np.maximum(known[2], capacity)])


def jobs(
    ints: Ints,
    floats: Floats,
    slots: Ints,
    columns: tuple[int, ...],
    preference: Ints,
    places: Ints,
    exists: Ints,
    capacity: Ints,
) -> tuple[Ints, Floats, Bools]:
    number, least, most, step, desired, milli, cpu, kind, count = (ints[column][slots] for column in columns[:9])
    unit = np.where(milli > 0, milli, cpu)
    allowed = (preference[:, places] != _NOT_ALLOWED) & (exists > 0)[:, None]
    at_most = np.where(allowed, capacity[:, None] // np.maximum(unit, 1), 0).max(axis=0, initial=0)
    inside = np.clip(np.minimum(desired, at_most), least, most)
    size = least + (inside - least) // step * step
    runs = np.where(count > 0, kind, -1)
    numbers = np.stack([number, size, unit, runs, least, milli])
    reals = np.stack([floats[column][slots] for column in columns[9:]])
    return numbers, reals, np.ascontiguousarray(allowed.T)


def amounts(
    jobs: Ints, ints: Ints, slots: Ints, columns: tuple[int, ...], capacity: Ints
) -> tuple[Floats, Floats, Ints]:
    _, size, unit, _, _, milli = jobs
    milli_gpus = size * np.maximum(unit, 1)
    room = capacity / _WHOLE
    room[_CPU] = min(room[_CPU], milli_gpus[milli == 0].sum() / _WHOLE) + milli_gpus[unit == 0].sum() / _WHOLE
    entity, workload, servers = (ints[column][slots] for column in columns)
    return milli_gpus / _WHOLE, room, np.stack([entity, workload, (milli == _WHOLE) & (servers == 0)])
