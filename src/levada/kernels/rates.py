"""Rates of jobs by type: lookup, allowed types, distance to completion."""

from __future__ import annotations

import math

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.registry import kernel

_CPU = 0


@kernel
def look_up(table: Floats, row_of: Ints, column_of: Ints, jobs: Ints, sizes: Ints, types: int) -> Floats:
    """(jobs, types): cells of *table* (rows, columns, sizes from 0) for each job and type.

    *row_of* and *column_of* contain the row of job n and the column of type n at n + 1; numbers beyond their ends use
    the last entry. A size beyond the table uses its last one, one below 0 the first.
    """
    cells = np.empty((len(jobs), types), np.float64)
    for i in range(len(jobs)):
        row = row_of[min(max(jobs[i] + 1, 0), len(row_of) - 1)]
        size = min(max(sizes[i], 0), table.shape[2] - 1)
        for k in range(types):
            cells[i, k] = table[row, column_of[min(k + 1, len(column_of) - 1)], size]
    return cells


@kernel
def look_up_each(table: Floats, row_of: Ints, column_of: Ints, jobs: Ints, types: Ints, sizes: Ints) -> Floats:
    """Like `look_up`, for one type per job."""
    cells = np.empty(len(jobs), np.float64)
    for i in range(len(jobs)):
        row = row_of[min(max(jobs[i] + 1, 0), len(row_of) - 1)]
        column = column_of[min(max(types[i] + 1, 0), len(column_of) - 1)]
        cells[i] = table[row, column, min(max(sizes[i], 0), table.shape[2] - 1)]
    return cells


@kernel
def mask_rates(rate: Floats, allowed: Bools, milli: Ints) -> tuple[Floats, Floats]:
    """Set *rate* (jobs, types) to 0 where a job may not run; best rate and relative rates per job.

    Tables contain GPUs only: a job without a GPU (*milli* 0) that may use type 0, cores, has rate 1 there unless the
    table has one.
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
    """Per job how often *longest_s* of GPU time is halved to get below its remaining need, up to *most*.

    *floats* is a block of the table, *scale* the GPUs of each job in *slots*, *best* its highest rate. 0 if unknown: a
    job that has done all declared steps and continues counts as undeclared.
    """
    counts = np.zeros(len(slots), np.int64)
    for i in range(len(slots)):
        left = (floats[c.STEPS, slots[i]] - floats[c.STEPS_DONE, slots[i]]) * scale[i]
        if left > 0.0 and best[i] > 0.0:
            counts[i] = min(max(-math.frexp(left / (best[i] * longest_s))[1], 0), most)
    return counts
