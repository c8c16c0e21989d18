"""`kernels.view` in numpy."""

from __future__ import annotations

import numpy as np

from levada.kernels import columns as c
from levada.kernels.arrays import Bools, Floats, Ints

_READ = [c.NUMBER, c.MIN, c.MAX, c.STEP, c.DESIRED, c.MILLI, c.CPU, c.TYPE, c.COUNT]


def jobs(
    ints: Ints,
    floats: Floats,
    slots: Ints,
    preference: Ints,
    places: Ints,
    exists: Ints,
    capacity: Ints,
) -> tuple[Ints, Floats, Bools]:
    number, least, most, step, desired, milli, cpu, kind, count = (ints[column][slots] for column in _READ)
    unit = np.where(milli > 0, milli, cpu)
    allowed = (preference[:, places] != c.NOT_ALLOWED) & (exists > 0)[:, None]
    at_most = np.where(allowed, capacity[:, None] // np.maximum(unit, 1), 0).max(axis=0, initial=0)
    inside = np.clip(np.minimum(desired, at_most), least, most)
    size = least + (inside - least) // step * step
    runs = np.where(count > 0, kind, -1)
    numbers = np.stack([number, size, unit, runs, least, milli])
    reals = np.stack([floats[c.WEIGHT][slots], floats[c.RUNNING_S][slots]])
    return numbers, reals, np.ascontiguousarray(allowed.T)


def amounts(jobs: Ints, ints: Ints, slots: Ints, capacity: Ints) -> tuple[Floats, Floats, Ints]:
    _, size, unit, _, _, milli = jobs
    milli_gpus = size * np.maximum(unit, 1)
    room = capacity / c.WHOLE
    cores, nothing = (milli_gpus[some].sum() / c.WHOLE for some in (milli == 0, unit == 0))
    room[c.CORES] = min(room[c.CORES], cores) + nothing
    entity, workload, servers = (ints[column][slots] for column in (c.ENTITY, c.WORKLOAD, c.SERVERS))
    return milli_gpus / c.WHOLE, room, np.stack([entity, workload, (milli == c.WHOLE) & (servers == 0)])
