"""Find equal rows: classes of jobs that a solver treats alike."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels.registry import kernel

# Shifts of a hash without multiplication: an overflow would warn when interpreted.
_LEFT, _RIGHT, _FOLD, _HALF = np.uint64(23), np.uint64(41), np.uint64(17), np.uint64(32)


@kernel
def distinct_rows(keys: Floats) -> tuple[Ints, Ints]:
    """The first index of each distinct row of *keys*, in order, and the class of every row.

    Rows are equal if their bits are equal; -0.0 counts as 0.0.
    """
    rows, columns = keys.shape
    bits = (keys + 0.0).view(np.uint64)
    size = 16
    while size < 2 * rows:
        size *= 2
    seen = np.full(size, -1, np.int64)
    first, class_of = np.empty(rows, np.int64), np.empty(rows, np.int64)
    number = 0
    for row in range(rows):
        code = np.uint64(0)
        for column in range(columns):
            code = (code << _LEFT | code >> _RIGHT) ^ bits[row, column]
            code ^= code >> _HALF
        code ^= code >> _FOLD
        position = np.int64(code & np.uint64(size - 1))
        while True:
            candidate = seen[position]
            if candidate < 0:
                seen[position] = class_of[row] = number
                first[number] = row
                number += 1
                break
            same = True
            for column in range(columns):
                same &= bits[first[candidate], column] == bits[row, column]
            if same:
                class_of[row] = candidate
                break
            position = (position + 1) % size
    return first[:number].copy(), class_of


@kernel
def groups(row: Ints, favour: Floats) -> tuple[Ints, Floats, Floats, Ints]:
    """Group jobs by *row* and *favour*: row, favour and size of each group, and the group of each job.

    Groups are in order of their first job.
    """
    keys = np.empty((len(row), 2), np.float64)
    for i in range(len(row)):
        keys[i, 0], keys[i, 1] = row[i], favour[i]
    first, group_of = distinct_rows(keys)
    count = np.zeros(len(first), np.float64)
    for group in group_of:
        count[group] += 1.0
    return row[first], favour[first], count, group_of


@kernel
def rows_of(
    believed: Floats, rate: Floats, scale: Floats, weight: Floats, capacity: Floats, alike: Ints, weighted: bool
) -> tuple[Floats, Floats, Floats, Ints, Ints]:
    """Merge equal jobs into rows: rates, scale, weight and entity of each row; the row of each job.

    *believed* are the rates that the policy assumes; they count only where a job can run: where its *rate* is above 0
    and its *scale* does not exceed *capacity*. If *weighted*, the weight compensates for the part of the cluster where
    the job cannot run; otherwise it is 1. Jobs are equal if, in addition, their columns of *alike* are; its first row
    is the entity.
    """
    jobs, types = believed.shape
    keys = np.empty((jobs, types + 2 + len(alike)), np.float64)
    for i in range(jobs):
        whole, part = 0.0, 0.0
        for k in range(types):
            keys[i, k] = believed[i, k] if rate[i, k] > 0.0 and scale[i] <= capacity[k] else 0.0
            whole += believed[i, k] * capacity[k]
            part += keys[i, k] * capacity[k]
        effective = 1.0
        if weighted:
            effective = weight[i] * (whole / part if part > 0.0 else 1.0)
        keys[i, types], keys[i, types + 1] = scale[i], effective
        for a in range(len(alike)):
            keys[i, types + 2 + a] = alike[a, i]
    first, row_of = distinct_rows(keys)
    number = len(first)
    rates, scales, weights = np.empty((number, types)), np.empty(number), np.empty(number)
    entity = np.empty(number, np.int64)
    for at in range(number):
        row = first[at]
        for k in range(types):
            rates[at, k] = keys[row, k]
        scales[at], weights[at], entity[at] = keys[row, types], keys[row, types + 1], alike[0, row]
    return rates, scales, weights, entity, row_of
