"""From rows of jobs to shares, by `price_leximin`: what stands around it, in one call. Part of `price`."""

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
    """Whether it was found; shares and levels of each row; the lowest level and its bound, prices and plans.

    Levels are scale x rate / (weight x proportional rate). Rows that can run nowhere, or stand for nobody, get nothing.
    Shares below the part *trace* of all that a row gets are nothing; *proved* is the gap to the bound that is accepted.
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
    mine, kinds = np.flatnonzero(part), np.flatnonzero(used)
    share, levels, prices = np.zeros((rows, types)), np.zeros(rows), np.zeros(types)
    plans = np.zeros((0, types))
    if not len(mine):
        return False, share, levels, 0.0, 0.0, prices, plans
    here, their, room = np.empty((len(mine), len(kinds))), gpus[mine], capacity[kinds]
    for at in range(len(mine)):
        for j in range(len(kinds)):
            here[at, j] = c[mine[at], kinds[j]]
    start = np.empty((len(seeds), len(kinds)))
    for z in range(len(seeds)):
        for j in range(len(kinds)):
            start[z, j] = seeds[z, kinds[j]]
    found, x, bound, proof, mixed = leximin(here, their, room, start, near)
    if not found:
        return False, share, levels, 0.0, 0.0, prices, plans
    lowest = np.inf
    use = np.zeros(len(kinds))
    for at in range(len(mine)):
        time, level = 0.0, 0.0
        for j in range(len(kinds)):
            time += x[at, j]
            level += here[at, j] * x[at, j]
            use[j] += their[at] * x[at, j]
        lowest = min(lowest, level)
        found &= time <= 1.0 + proved
    for j in range(len(kinds)):
        found &= use[j] <= room[j] * (1.0 + proved)
    if not found or lowest < bound * (1.0 - proved):
        return False, share, levels, 0.0, 0.0, prices, plans
    fit(x, their, room, trace)
    lowest = np.inf
    for at in range(len(mine)):
        for j in range(len(kinds)):
            share[mine[at], kinds[j]] = x[at, j]
            levels[mine[at]] += here[at, j] * x[at, j]
        lowest = min(lowest, levels[mine[at]])
    plans = np.zeros((len(mixed), types))
    for j in range(len(kinds)):
        prices[kinds[j]] = proof[j]
        for z in range(len(mixed)):
            plans[z, kinds[j]] = mixed[z, j]
    return True, share, levels, float(lowest), float(bound), prices, plans


@kernel
def fit(share: Floats, gpus: Floats, capacity: Floats, trace: float) -> None:
    """Takes traces away, and what rounding gave beyond all time or GPUs."""
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
