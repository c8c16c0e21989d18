"""Observed rates by workload, GPU type and size, with decay.

Old observations decay exponentially, and outliers are rejected. A *cell* is a (workload, GPU type, size), a *pair* a
(workload, GPU type). A cell has a mean rate and a weight in seconds of observed running. While its pair runs at any
size, the weight halves every half-life; the mean does not change. The weight of an interval decays within the interval,
too: one report of an hour has the same effect as sixty of a minute, and no weight exceeds half_life / ln 2.
"""

from math import log
from typing import NamedTuple

import msgspec
import numpy as np

from levada.perf.lookup import Lookup
from levada.perf.model import Bools, Floats, Ints
from levada.perf.tuning import Tuning

_TYPE_BITS, _SIZE_BITS = 16, 24
_WORKLOADS, _TYPES, _SIZES = 1 << 23, 1 << _TYPE_BITS, 1 << _SIZE_BITS
#: Minimum weight of an observed size in seconds, so that curves do not lose points.
_MIN_WEIGHT_S = 1e-9
#: Limits of valid reports; larger sums could exceed the range of floats.
_LONGEST_S = 1e9
_SLOWEST, _FASTEST = 1e-12, 1e12


class Observations(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Intervals of progress, one per row, in columns of one length."""

    workload: Ints
    gpu_type: Ints
    workers: Ints
    #: Length of the interval, and its number of steps.
    seconds: Floats
    steps: Floats
    #: End of the interval in seconds; rows of a batch may be in any order.
    at: Floats
    #: False for the first interval after a start or a resize.
    warm: Bools


class Cells(NamedTuple):
    """Cells in the order of their keys. Arrays are replaced, never modified, since copies share them."""

    key: Ints
    rate: Floats
    weight: Floats
    #: Consecutive warm samples that were rejected as outliers.
    strikes: Ints


class CellUpdate(NamedTuple):
    """Result of `update_cells`."""

    cells: Cells
    #: Pairs whose cells changed, ascending.
    touched: Ints
    #: Numbers of invalid rows, and of rows rejected as outliers.
    ignored: int
    outliers: int


NO_CELLS = Cells(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, np.int64))


def cell_key(workload: Ints, gpu_type: Ints, workers: Ints) -> Ints:
    """An integer key that sorts by workload, GPU type, size."""
    return (((workload << _TYPE_BITS) | gpu_type) << _SIZE_BITS) | workers


def split_cell(key: Ints) -> tuple[Ints, Ints, Ints]:
    """Workload, GPU type and size of a cell."""
    return (*split_pair(pair_of(key)), key & (_SIZES - 1))


def pair_of(key: Ints) -> Ints:
    """The pair of a cell."""
    return key >> _SIZE_BITS


def split_pair(pair: Ints) -> tuple[Ints, Ints]:
    """Workload and GPU type of a pair."""
    return pair >> _TYPE_BITS, pair & (_TYPES - 1)


def remove_workloads(cells: Cells, workloads: Ints) -> Cells:
    """The cells of all other workloads."""
    remains = np.isin(split_cell(cells.key)[0], workloads, invert=True)
    return Cells(cells.key[remains], cells.rate[remains], cells.weight[remains], cells.strikes[remains])


def update_cells(cells: Cells, seen: Observations, tuning: Tuning) -> CellUpdate:
    """Add observations, in any order, to the cells. O(b log b + cells) for b rows, vectorized."""
    batch = _valid_rows(seen)
    ignored = len(seen.seconds) - batch.key.size
    if not batch.key.size:
        return CellUpdate(cells, batch.key, ignored, 0)
    keys, cell = np.unique(batch.key, return_inverse=True)
    cells = _with_keys(cells, keys)
    position = np.searchsorted(cells.key, keys)
    use, restart, strikes = _reject_outliers(
        batch, cell, cells.rate[position], cells.weight[position], cells.strikes[position], tuning
    )

    # The weight of a row decays with the seconds that its pair runs after it in this batch; cold rows count less.
    length = np.where(use, batch.seconds * np.where(batch.warm, 1.0, tuning.cold_weight), 0.0)
    pairs, pair = np.unique(pair_of(batch.key), return_inverse=True)
    ran = np.bincount(pair, length, pairs.size)
    after = np.maximum(np.cumsum(ran)[pair] - np.cumsum(length), 0.0)
    weight = _decay(after, tuning) * (1.0 - _decay(length, tuning)) * (tuning.half_life_s / log(2))
    weight = np.where(length > 0, np.maximum(weight, _MIN_WEIGHT_S), 0.0)
    added_weight = np.bincount(cell, weight, keys.size)
    weighted_rate = np.bincount(cell, weight * batch.rate, keys.size)

    # The cells of a pair decay with the time that the pair ran; other pairs (index -1) do not decay.
    elapsed = np.append(ran, 0.0)[Lookup(pairs, np.arange(pairs.size)).find(pair_of(cells.key))]
    total = np.where(cells.weight > 0, np.maximum(cells.weight * _decay(elapsed, tuning), _MIN_WEIGHT_S), 0.0)
    total[position[restart]] = 0.0
    rate, all_strikes = cells.rate.copy(), cells.strikes.copy()
    learned = added_weight > 0
    at = position[learned]
    rate[at] = (total[at] * rate[at] + weighted_rate[learned]) / (total[at] + added_weight[learned])
    total[position] += added_weight
    all_strikes[position] = strikes
    used = total > 0
    return CellUpdate(
        Cells(cells.key[used], rate[used], total[used], all_strikes[used]),
        pairs[ran > 0],
        ignored,
        int(np.count_nonzero(~use)),
    )


class _Batch(NamedTuple):
    """Valid rows by pair, then time; other columns make the order deterministic."""

    key: Ints
    seconds: Floats
    rate: Floats
    warm: Bools


def _valid_rows(seen: Observations) -> _Batch:
    workload, gpu_type, workers = (np.asarray(c, np.int64) for c in (seen.workload, seen.gpu_type, seen.workers))
    seconds, steps, at = (np.asarray(c, np.float64) for c in (seen.seconds, seen.steps, seen.at))
    warm = np.asarray(seen.warm, np.bool_)
    with np.errstate(all="ignore"):
        rate = steps / seconds
    valid = (
        ((workload >= 0) & (workload < _WORKLOADS))
        & ((gpu_type >= 0) & (gpu_type < _TYPES))
        & ((workers >= 1) & (workers < _SIZES))
        & ((seconds > 0) & (seconds <= _LONGEST_S))
        & ((rate >= _SLOWEST) & (rate <= _FASTEST))
        & np.isfinite(at)
    )
    rows = np.flatnonzero(valid)
    key = cell_key(workload[rows], gpu_type[rows], workers[rows])
    order = np.lexsort((warm[rows], rate[rows], seconds[rows], key, at[rows], pair_of(key)))
    rows = rows[order]
    return _Batch(key[order], seconds[rows], rate[rows], warm[rows])


def _with_keys(cells: Cells, keys: Ints) -> Cells:
    """Add empty cells for missing *keys*."""
    missing = np.setdiff1d(keys, cells.key, assume_unique=True)
    if not missing.size:
        return cells
    at = np.searchsorted(cells.key, missing)
    return Cells(
        np.insert(cells.key, at, missing),
        np.insert(cells.rate, at, 0.0),
        np.insert(cells.weight, at, 0.0),
        np.insert(cells.strikes, at, 0),
    )


def _reject_outliers(
    batch: _Batch, cell: Ints, known: Floats, weight: Floats, strikes: Ints, tuning: Tuning
) -> tuple[Bools, Bools, Ints]:
    """Which rows to use, which cells to reset, and the strikes of each cell after this batch.

    Compares each row with the median of its cell in this batch, and the median with the known rate of the cell.
    """
    band = log(tuning.outlier_factor)
    log_rate = np.log(batch.rate)
    count = np.bincount(cell)
    middle = np.cumsum(count) - count + (count - 1) // 2
    median = log_rate[np.lexsort((log_rate, cell))[middle]]
    near = np.abs(log_rate - median[cell]) <= band

    far = (weight > 0) & (np.abs(median - np.log(np.where(weight > 0, known, 1.0))) > band)
    warm = np.bincount(cell, near & batch.warm, known.size).astype(np.int64)
    new_strikes = np.where(far, strikes + warm, 0)
    warm_s = np.bincount(cell, np.where(near & batch.warm, batch.seconds, 0.0), known.size)
    unsure = (weight / (weight + tuning.even_weight_s) < tuning.outlier_confidence) & (warm_s >= weight)
    restart = far & (unsure | (new_strikes >= tuning.outlier_strikes))
    return near & ~(far & ~restart)[cell], restart, np.where(restart, 0, new_strikes)


def _decay(seconds: Floats, tuning: Tuning) -> Floats:
    """The remaining fraction of a weight after *seconds* of running."""
    return np.exp2(-seconds / tuning.half_life_s)
