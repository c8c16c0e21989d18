"""`kernels.rates` in numpy."""

from __future__ import annotations

import numpy as np

from levada.kernels import columns as c
from levada.kernels.arrays import Bools, Floats, Ints

_CPU = 0


def look_up(table: Floats, row_of: Ints, column_of: Ints, jobs: Ints, sizes: Ints, types: int) -> Floats:
    _, columns, width = table.shape
    row = row_of.take(jobs + 1, mode="clip").astype(np.int64)
    column = column_of.take(np.arange(1, types + 1), mode="clip")
    size = np.minimum(np.maximum(sizes, 0), width - 1)
    return table.take((row * (columns * width) + size)[:, None] + column * width)


def look_up_each(table: Floats, row_of: Ints, column_of: Ints, jobs: Ints, types: Ints, sizes: Ints) -> Floats:
    _, columns, width = table.shape
    row = row_of.take(jobs + 1, mode="clip").astype(np.int64)
    column = column_of.take(types + 1, mode="clip").astype(np.int64)
    size = np.minimum(np.maximum(sizes, 0), width - 1)
    return table.take((row * columns + column) * width + size)


def hold(rate: Floats, allowed: Bools, milli: Ints) -> tuple[Floats, Floats]:
    rate[~allowed] = 0.0
    rate[(milli == 0) & allowed[:, _CPU] & (rate[:, _CPU] == 0), _CPU] = 1.0
    best = rate.max(axis=1, initial=0.0)
    return best, rate / np.where(best > 0, best, 1.0)[:, None]


def halvings(floats: Floats, slots: Ints, scale: Floats, best: Floats, longest_s: float, most: int) -> Ints:
    left = (floats[c.STEPS, slots] - floats[c.STEPS_DONE, slots]) * scale
    known = (left > 0) & (best > 0)
    part = np.divide(left, best * longest_s, out=np.ones(len(left)), where=known)
    return np.clip(-np.frexp(part)[1].astype(np.int64), 0, most)
