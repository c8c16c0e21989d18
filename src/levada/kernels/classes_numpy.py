"""`kernels.classes` in numpy."""

from __future__ import annotations

import numpy as np

from levada.kernels.arrays import Floats, Ints

#: Odd multipliers spread the bits of a row's numbers over one 64-bit number.
_SPREAD = 0x9E3779B97F4A7C15


def distinct_rows(keys: Floats) -> tuple[Ints, Ints]:
    # + 0.0: minus zero equals zero, so it must not have bits of its own.
    bits = np.ascontiguousarray(keys + 0.0).view(np.uint64)
    mark = np.zeros(len(bits), np.uint64)
    for column in range(bits.shape[1]):
        mark = (mark ^ bits[:, column]) * np.uint64(_SPREAD)
        mark ^= mark >> np.uint64(32)
    _, first, of = np.unique(mark, return_index=True, return_inverse=True)
    if not np.array_equal(bits[first[of]], bits):
        # Two different rows have one mark, which happens once in ages: compare whole rows.
        _, first, of = np.unique(bits, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return first[order], rank[of]


def groups(row: Ints, favour: Floats) -> tuple[Ints, Floats, Floats, Ints]:
    first, of = distinct_rows(np.column_stack([row, favour]))
    return row[first], favour[first], np.bincount(of, minlength=len(first)).astype(np.float64), of


def rows_of(
    believed: Floats, rate: Floats, scale: Floats, weight: Floats, capacity: Floats, alike: Ints, weighted: bool
) -> tuple[Floats, Floats, Floats, Ints, Ints]:
    jobs, types = believed.shape
    rates = np.where((rate > 0) & (scale[:, None] <= capacity), believed, 0.0)
    worth = np.ones(jobs)
    if weighted:
        whole, part = np.zeros(jobs), np.zeros(jobs)
        for kind in range(types):
            whole += believed[:, kind] * capacity[kind]
            part += rates[:, kind] * capacity[kind]
        worth = weight * np.divide(whole, part, out=np.ones(jobs), where=part > 0)
    first, of = distinct_rows(np.column_stack([rates, scale, worth, alike.T]))
    return rates[first], scale[first], worth[first], alike[0][first], of
