"""Which rows are equal."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels.registry import kernel

# Shifts of a hash that mixes without multiplying: interpreted, a product that overflows would warn.
_LEFT, _RIGHT, _FOLD, _HALF = np.uint64(23), np.uint64(41), np.uint64(17), np.uint64(32)


@kernel
def distinct_rows(keys: Floats) -> tuple[Ints, Ints]:
    """Where each distinct row of *keys* stands first, in order, and for every row the number of its distinct one.

    Rows are equal where their numbers have the same bits; only minus zero is zero.
    """
    rows, columns = keys.shape
    bits = (keys + 0.0).view(np.uint64)
    size = 16
    while size < 2 * rows:
        size *= 2
    seen = np.full(size, -1, np.int64)
    first, of = np.empty(rows, np.int64), np.empty(rows, np.int64)
    number = 0
    for row in range(rows):
        mark = np.uint64(0)
        for column in range(columns):
            mark = (mark << _LEFT | mark >> _RIGHT) ^ bits[row, column]
            mark ^= mark >> _HALF
        mark ^= mark >> _FOLD
        place = np.int64(mark & np.uint64(size - 1))
        while True:
            which = seen[place]
            if which < 0:
                seen[place] = of[row] = number
                first[number] = row
                number += 1
                break
            same = True
            for column in range(columns):
                same &= bits[first[which], column] == bits[row, column]
            if same:
                of[row] = which
                break
            place = (place + 1) % size
    return first[:number].copy(), of


@kernel
def groups(row: Ints, favour: Floats) -> tuple[Ints, Floats, Floats, Ints]:
    """Jobs of the same *row* and *favour* are a group: the row and favour of each, how many jobs it has, in the order
    in which groups first appear; and the group of each job."""
    keys = np.empty((len(row), 2), np.float64)
    for i in range(len(row)):
        keys[i, 0], keys[i, 1] = row[i], favour[i]
    first, of = distinct_rows(keys)
    count = np.zeros(len(first), np.float64)
    for group in of:
        count[group] += 1.0
    return row[first], favour[first], count, of


@kernel
def rows_of(
    believed: Floats, rate: Floats, scale: Floats, weight: Floats, capacity: Floats, alike: Ints, weighted: bool
) -> tuple[Floats, Floats, Floats, Ints, Ints]:
    """Jobs as rows of equal ones: rates that a policy *believes*, where a job can run; scale, weight, and *alike*'s
    first column of each row; and the row of each job.

    A job can run where its *rate* is above 0 and its *scale* is not above *capacity*. Where *weighted*, its weight
    makes up for the part of the cluster where it cannot; otherwise it is 1. Jobs are equal if what *alike* says is.
    """
    jobs, types = believed.shape
    keys = np.empty((jobs, types + 2 + len(alike)), np.float64)
    for i in range(jobs):
        whole, part = 0.0, 0.0
        for k in range(types):
            keys[i, k] = believed[i, k] if rate[i, k] > 0.0 and scale[i] <= capacity[k] else 0.0
            whole += believed[i, k] * capacity[k]
            part += keys[i, k] * capacity[k]
        worth = 1.0
        if weighted:
            worth = weight[i] * (whole / part if part > 0.0 else 1.0)
        keys[i, types], keys[i, types + 1] = scale[i], worth
        for a in range(len(alike)):
            keys[i, types + 2 + a] = alike[a, i]
    first, of = distinct_rows(keys)
    number = len(first)
    rates, scales, weights = np.empty((number, types)), np.empty(number), np.empty(number)
    entity = np.empty(number, np.int64)
    for at in range(number):
        row = first[at]
        for k in range(types):
            rates[at, k] = keys[row, k]
        scales[at], weights[at], entity[at] = keys[row, types], keys[row, types + 1], alike[0, row]
    return rates, scales, weights, entity, of
