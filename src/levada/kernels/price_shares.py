"""Leximin shares from rows of jobs, by `price_leximin`. Part of `price`."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats
from levada.kernels.price_leximin import leximin
from levada.kernels.registry import kernel
from levada.kernels.sums import total as add_up


@kernel
def leximin_shares(
    rate: Floats,
    scale: Floats,
    weight: Floats,
    count: Floats,
    capacity: Floats,
    seeds: Floats,
    near: float,
    proved: float,
    trace: float,
) -> tuple[bool, Floats, Floats, float, float, Floats, Floats]:
    """Whether it was solved; shares and levels of rows; the lowest level, its bound, prices, plans.

    Levels are scale x rate / (weight x proportional rate). Rows that can run nowhere, or have no jobs, get nothing.
    Shares below the fraction *trace* of a row's total are set to 0; *proved* is the accepted relative gap to the bound.
    """
    rows, types = rate.shape
    c, gpus, part = np.zeros((rows, types)), np.empty(rows), np.zeros(rows, np.bool_)
    used, total = np.zeros(types, np.bool_), add_up(capacity)
    for i in range(rows):
        gpus[i] = count[i] * scale[i]
        reference = 0.0
        for k in range(types):
            if capacity[k] > 0.0:
                reference += rate[i, k] * (capacity[k] / total)
        reference *= weight[i]
        for k in range(types):
            if capacity[k] > 0.0 and reference > 0.0:
                c[i, k] = rate[i, k] * (scale[i] / reference)
                used[k] |= c[i, k] > 0.0
                part[i] |= c[i, k] > 0.0 and gpus[i] > 0.0
    active_rows, kinds = np.flatnonzero(part), np.flatnonzero(used)
    share, levels, prices = np.zeros((rows, types)), np.zeros(rows), np.zeros(types)
    plans = np.zeros((0, types))
    if not len(active_rows):
        return False, share, levels, 0.0, 0.0, prices, plans
    active_c, active_gpus, room = np.empty((len(active_rows), len(kinds))), gpus[active_rows], capacity[kinds]
    for at in range(len(active_rows)):
        for j in range(len(kinds)):
            active_c[at, j] = c[active_rows[at], kinds[j]]
    start = np.empty((len(seeds), len(kinds)))
    for z in range(len(seeds)):
        for j in range(len(kinds)):
            start[z, j] = seeds[z, kinds[j]]
    solved, x, bound, proof, mixed = leximin(active_c, active_gpus, room, start, near)
    if not solved:
        return False, share, levels, 0.0, 0.0, prices, plans
    lowest = np.inf
    use = np.zeros(len(kinds))
    for at in range(len(active_rows)):
        time, level = 0.0, 0.0
        for j in range(len(kinds)):
            time += x[at, j]
            level += active_c[at, j] * x[at, j]
            use[j] += active_gpus[at] * x[at, j]
        lowest = min(lowest, level)
        solved &= time <= 1.0 + proved
    for j in range(len(kinds)):
        solved &= use[j] <= room[j] * (1.0 + proved)
    if not solved or lowest < bound * (1.0 - proved):
        return False, share, levels, 0.0, 0.0, prices, plans
    fit(x, active_gpus, room, trace)
    lowest = np.inf
    for at in range(len(active_rows)):
        for j in range(len(kinds)):
            share[active_rows[at], kinds[j]] = x[at, j]
            levels[active_rows[at]] += active_c[at, j] * x[at, j]
        lowest = min(lowest, levels[active_rows[at]])
    plans = np.zeros((len(mixed), types))
    for j in range(len(kinds)):
        prices[kinds[j]] = proof[j]
        for z in range(len(mixed)):
            plans[z, kinds[j]] = mixed[z, j]
    return True, share, levels, float(lowest), float(bound), prices, plans


@kernel
def fit(share: Floats, gpus: Floats, capacity: Floats, trace: float) -> None:
    """Remove negligible shares, and scale down what rounding put above all time or GPUs."""
    use = np.zeros(len(capacity))
    for i in range(len(share)):
        total, time = add_up(share[i]), 0.0
        for k in range(len(capacity)):
            if share[i, k] <= trace * total:
                share[i, k] = 0.0
            time += share[i, k]
        for k in range(len(capacity)):
            share[i, k] /= max(time, 1.0)
            use[k] += gpus[i] * share[i, k]
    for k in range(len(capacity)):
        if use[k] > capacity[k]:
            share[:, k] *= capacity[k] / use[k]
