"""Curves of all workloads on all GPU types, observed or transferred.

On a GPU type on which a workload has not run, it has the curve of its best-observed type (largest effective weight;
ties: lower index), times the ratio of both types. The ratio is the geometric mean over all workloads observed on both
types, each compared at the smallest size of both curves; 1 if there is no such workload.
"""

from typing import NamedTuple

import numpy as np

from levada.perf.curve import Curves, isotonic
from levada.perf.lookup import Lookup
from levada.perf.model import Floats, Ints
from levada.perf.samples import Cells, pair_of, split_cell, split_pair
from levada.perf.tuning import Tuning


class Fitted(NamedTuple):
    """Curve, scale and factor of the confidence, by workload and GPU type.

    The last row is for unknown workloads, the last column for unknown types (index -1).
    """

    workloads: Lookup
    types: Lookup
    curves: Curves
    curve: Ints
    scale: Floats
    trust: Floats


def smoothed(cells: Cells, stale: Ints, before: Cells) -> Cells:
    """The cells with non-decreasing rates within each pair.

    Only the pairs in *stale* are fitted; the others are copied from *before*, an earlier result.
    """
    owner = pair_of(cells.key)
    pairs, start, length = np.unique(owner, return_index=True, return_counts=True)
    rate = cells.rate.copy()
    unchanged = np.isin(owner, stale, invert=True)
    rate[unchanged] = before.rate[np.searchsorted(before.key, cells.key[unchanged])]
    falls = np.unique(owner[1:][(owner[1:] == owner[:-1]) & (rate[1:] < rate[:-1])])
    which = np.searchsorted(pairs, falls)
    for first, count in zip(start[which].tolist(), length[which].tolist(), strict=True):
        part = slice(first, first + count)
        rate[part] = isotonic(rate[part].tolist(), cells.weight[part].tolist())
    return cells._replace(rate=rate)


def assemble(cells: Cells, tuning: Tuning) -> Fitted:
    """Fit curves to smoothed cells. O(cells + workloads x types^2)."""
    sizes = split_cell(cells.key)[2]
    pairs, start, owner, length = np.unique(
        pair_of(cells.key), return_index=True, return_inverse=True, return_counts=True
    )
    curves = Curves.fitted(sizes, cells.rate, cells.weight, length, tuning.even_weight_s)
    workload, gpu_type = split_pair(pairs)
    workloads, row = np.unique(workload, return_inverse=True)
    types, column = np.unique(gpu_type, return_inverse=True)

    curve = np.zeros((workloads.size + 1, types.size + 1), np.int64)
    curve[row, column] = np.arange(1, pairs.size + 1)
    weight = np.zeros(curve.shape)
    weight[row, column] = np.bincount(owner, cells.weight, pairs.size)
    smallest = np.zeros(curve.shape, np.int64)
    smallest[row, column] = sizes[start]

    ratio, seen_on_both = _ratios(curves, curve, smallest)
    source = np.argmax(weight, axis=1)
    observed = curve > 0
    scale = np.where(observed, 1.0, ratio[source])
    trust = np.where(observed, 1.0, np.where(seen_on_both[source], tuning.borrowed_trust, tuning.guessed_trust))
    borrowed = np.take_along_axis(curve, source[:, None], axis=1)
    scale[-1] = 1.0  # an unknown workload is linear on all types
    return Fitted(
        Lookup(workloads, np.arange(workloads.size)),
        Lookup(types, np.arange(types.size)),
        curves,
        np.where(observed, curve, borrowed),
        scale,
        trust,
    )


def _ratios(curves: Curves, curve: Ints, smallest: Ints) -> tuple[Floats, Floats]:
    """Speed of the second type relative to the first, and the number of workloads observed on both."""
    kinds = curve.shape[1]
    ratio, common = np.ones((kinds, kinds)), np.zeros((kinds, kinds))
    for first in range(kinds):
        for second in range(first + 1, kinds):
            both = np.flatnonzero((curve[:, first] > 0) & (curve[:, second] > 0))
            if both.size:
                sizes = np.maximum(smallest[both, first], smallest[both, second])
                speeds = curves.rates(curve[both][:, [first, second]], sizes[:, None])
                change = float(np.exp(np.mean(np.diff(np.log(speeds), axis=1))))
                ratio[first, second], ratio[second, first] = change, 1 / change
                common[first, second] = common[second, first] = both.size
    return ratio, common
