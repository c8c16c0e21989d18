"""How fast each job is on each type: looked up in a table, and held to what the job may use; and how near its end."""

from __future__ import annotations

import math

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.registry import kernel

_CPU = 0


@kernel
def look_up(table: Floats, row_of: Ints, column_of: Ints, jobs: Ints, sizes: Ints, types: int) -> Floats:
    """(jobs, types): cells of *table* (rows, columns, sizes from 0 on) for each job on each of the first *types* types.

    *row_of* and *column_of* hold the row of job n and the column of type n at n + 1; beyond their ends, what stands
    there. A size beyond the table is its last one, one below 0 its first.
    """
    found = np.empty((len(jobs), types), np.float64)
    for i in range(len(jobs)):
        row = row_of[min(max(jobs[i] + 1, 0), len(row_of) - 1)]
        size = min(max(sizes[i], 0), table.shape[2] - 1)
        for k in range(types):
            found[i, k] = table[row, column_of[min(k + 1, len(column_of) - 1)], size]
    return found


@kernel
def look_up_each(table: Floats, row_of: Ints, column_of: Ints, jobs: Ints, types: Ints, sizes: Ints) -> Floats:
    """As `look_up`, for each job on a type of its own."""
    found = np.empty(len(jobs), np.float64)
    for i in range(len(jobs)):
        row = row_of[min(max(jobs[i] + 1, 0), len(row_of) - 1)]
        column = column_of[min(max(types[i] + 1, 0), len(column_of) - 1)]
        found[i] = table[row, column, min(max(sizes[i], 0), table.shape[2] - 1)]
    return found


@kernel
def hold(rate: Floats, allowed: Bools, milli: Ints) -> tuple[Floats, Floats]:
    """Sets *rate* (jobs, types) to 0 where a job may not run; the highest of each job, and each over that.

    Tables are of GPUs: a job without one (*milli* 0) that may use the first type, cores, has rate 1 there if none else.
    """
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


@kernel
def halvings(floats: Floats, slots: Ints, scale: Floats, best: Floats, longest_s: float, most: int) -> Ints:
    """Per job how often *longest_s* of GPU time must be halved to come down to what it needs to be done, up to *most*.

    *floats* is a block of the table, *scale* the GPUs of each job in *slots*, *best* its highest rate. 0 where nobody
    can tell: who did all that it said, and goes on, has said nothing.
    """
    found = np.zeros(len(slots), np.int64)
    for i in range(len(slots)):
        left = (floats[c.STEPS, slots[i]] - floats[c.STEPS_DONE, slots[i]]) * scale[i]
        if left > 0.0 and best[i] > 0.0:
            found[i] = min(max(-math.frexp(left / (best[i] * longest_s))[1], 0), most)
    return found
