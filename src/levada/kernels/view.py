"""Input of share policies: capacity by type and job sizes, in small blocks."""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.registry import kernel

#: Rows by type, as in `core.allocatable`: whether it exists, capacity left by others, total capacity.
EXISTS, ROOM, TOTAL = range(3)
#: Rows of the first block of `jobs`. RUNS is the current target type, -1 = none.
NUMBER, SIZE, UNIT, RUNS, LEAST, MILLI = range(6)
#: Rows of the second block.
WEIGHT, AGE = range(2)


@kernel
def jobs(
    ints: Ints,
    floats: Floats,
    slots: Ints,
    preference: Ints,
    positions: Ints,
    exists: Ints,
    capacity: Ints,
) -> tuple[Ints, Floats, Bools]:
    """The jobs in *slots* as two blocks, and per job and type whether it may run there.

    *ints* and *floats* are the blocks of the table, with the columns of `core.layout`. *preference* is by type and
    position; *positions* has that of each job. The size is the desired one, limited to what any type holds and to the
    allowed sizes.
    """
    types = len(capacity)
    numbers = np.empty((6, len(slots)), np.int64)
    reals = np.empty((2, len(slots)), np.float64)
    allowed = np.empty((len(slots), types), np.bool_)
    for row in range(len(slots)):
        s = slots[row]
        unit = ints[c.MILLI, s] if ints[c.MILLI, s] > 0 else ints[c.CPU, s]
        at_most = 0
        for k in range(types):
            allowed[row, k] = exists[k] > 0 and preference[k, positions[row]] != c.NOT_ALLOWED
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


@kernel
def amounts(jobs: Ints, ints: Ints, slots: Ints, capacity: Ints) -> tuple[Floats, Floats, Ints]:
    """GPUs of each job (cores for a job without), GPUs of each type, and the identity of jobs.

    *jobs* is the first block of `jobs`, *ints* that of the table. Cores may be unlimited: they are capped at what jobs
    without a GPU take, with a surplus for jobs without any needs. The rows of the last block are entity, workload, and
    whether workers are exactly one whole GPU each.
    """
    scale, room = np.empty(len(slots), np.float64), np.empty(len(capacity), np.float64)
    alike = np.empty((3, len(slots)), np.int64)
    cores, surplus = 0, 0
    for row in range(len(slots)):
        s, unit, milli = slots[row], jobs[2, row], jobs[5, row]
        milli_gpus = jobs[1, row] * max(unit, 1)
        scale[row] = milli_gpus / c.WHOLE
        if milli == 0:
            cores += milli_gpus
        if unit == 0:
            surplus += milli_gpus
        alike[0, row], alike[1, row] = ints[c.ENTITY, s], ints[c.WORKLOAD, s]
        alike[2, row] = milli == c.WHOLE and ints[c.SERVERS, s] == 0
    for kind in range(len(capacity)):
        room[kind] = capacity[kind] / c.WHOLE
    room[c.CORES] = min(room[c.CORES], cores / c.WHOLE) + surplus / c.WHOLE
    return scale, room, alike
