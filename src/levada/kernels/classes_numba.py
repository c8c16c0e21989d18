"""`kernels.classes`, compiled: a hash table of the rows seen."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

# As in `classes_numpy`.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


@numba.njit(cache=True)
def distinct_rows(keys: Any) -> Any:
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
            mark = (mark ^ bits[row, column]) * _SPREAD
            mark ^= mark >> _HALF
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


@numba.njit(cache=True)
def groups(row: Any, favour: Any) -> Any:
    keys = np.empty((len(row), 2), np.float64)
    for i in range(len(row)):
        keys[i, 0], keys[i, 1] = row[i], favour[i]
    first, of = distinct_rows(keys)
    count = np.zeros(len(first), np.float64)
    for group in of:
        count[group] += 1.0
    return row[first], favour[first], count, of


@numba.njit(cache=True)
def rows_of(believed: Any, rate: Any, scale: Any, weight: Any, capacity: Any, alike: Any, weighted: bool) -> Any:
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
