"""What was seen of each workload on each GPU type at each size: rates that fade, and keep outliers out.

A *cell* is one (workload, GPU type, size), a *pair* one (workload, GPU type). A cell keeps a mean rate and a weight in
seconds of observed running. While its pair runs on at any size, the weight halves every half-life; the mean stays,
with ever less to say. The weight of an interval fades within the interval too, so that one report of an hour and sixty
of a minute teach the same, and no weight ever exceeds half_life / ln 2.
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
#: What an observed size keeps at least, in seconds: it is never quite forgotten, so curves do not lose points.
_LEAST_WEIGHT_S = 1e-9
#: Beyond these a report is nonsense, and sums of it would leave the range of floats.
_LONGEST_S = 1e9
_SLOWEST, _FASTEST = 1e-12, 1e12


class Observations(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Intervals of progress, one per row, in columns of one length."""

    workload: Ints
    gpu_type: Ints
    workers: Ints
    #: How long the interval was and how many steps it brought.
    seconds: Floats
    steps: Floats
    #: When it ended, in seconds; orders the rows of a batch, whatever order they stand in.
    at: Floats
    #: False for the first interval after a start or a resize.
    warm: Bools


class Cells(NamedTuple):
    """What is known per cell, ordered by key. Arrays are replaced, never written to: copies may share them."""

    key: Ints
    rate: Floats
    weight: Floats
    #: Warm samples in a row that were left out as outliers.
    strikes: Ints


class Absorbed(NamedTuple):
    """What a batch led to."""

    cells: Cells
    #: Pairs whose cells changed, ascending.
    touched: Ints
    #: Rows that are no observation at all, and rows left out because they are too far from what is known.
    ignored: int
    outliers: int


NO_CELLS = Cells(np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros(0, np.int64))


def cell_key(workload: Ints, gpu_type: Ints, workers: Ints) -> Ints:
    """One integer that orders by workload, GPU type, size."""
    return (((workload << _TYPE_BITS) | gpu_type) << _SIZE_BITS) | workers


def split_cell(key: Ints) -> tuple[Ints, Ints, Ints]:
    """Workload, GPU type and size of a cell."""
    return (*split_pair(pair_of(key)), key & (_SIZES - 1))


def pair_of(key: Ints) -> Ints:
    """The pair a cell belongs to."""
    return key >> _SIZE_BITS


def split_pair(pair: Ints) -> tuple[Ints, Ints]:
    """Workload and GPU type of a pair."""
    return pair >> _TYPE_BITS, pair & (_TYPES - 1)


def without(cells: Cells, workloads: Ints) -> Cells:
    """The cells of all other workloads."""
    stays = np.isin(split_cell(cells.key)[0], workloads, invert=True)
    return Cells(cells.key[stays], cells.rate[stays], cells.weight[stays], cells.strikes[stays])


def absorb(cells: Cells, seen: Observations, tuning: Tuning) -> Absorbed:
    """What is known after *seen*, whatever the order of its rows. O(b log b + cells) for b rows, all vectorised."""
    batch = _cleaned(seen)
    ignored = len(seen.seconds) - batch.key.size
    if not batch.key.size:
        return Absorbed(cells, batch.key, ignored, 0)
    own, cell = np.unique(batch.key, return_inverse=True)
    cells = _with_keys(cells, own)
    spot = np.searchsorted(cells.key, own)
    use, restart, strikes = _judge(batch, cell, cells.rate[spot], cells.weight[spot], cells.strikes[spot], tuning)

    # A row's weight fades with the seconds its pair runs after it in this batch; cold rows count for less.
    length = np.where(use, batch.seconds * np.where(batch.warm, 1.0, tuning.cold_weight), 0.0)
    pairs, pair = np.unique(pair_of(batch.key), return_inverse=True)
    ran = np.bincount(pair, length, pairs.size)
    after = np.maximum(np.cumsum(ran)[pair] - np.cumsum(length), 0.0)
    weight = _fade(after, tuning) * (1.0 - _fade(length, tuning)) * (tuning.half_life_s / log(2))
    weight = np.where(length > 0, np.maximum(weight, _LEAST_WEIGHT_S), 0.0)
    gained = np.bincount(cell, weight, own.size)
    summed = np.bincount(cell, weight * batch.rate, own.size)

    # All cells of a pair fade with what the pair ran; those of other pairs (looked up as -1) by nothing.
    passed = np.append(ran, 0.0)[Lookup(pairs, np.arange(pairs.size)).find(pair_of(cells.key))]
    total = np.where(cells.weight > 0, np.maximum(cells.weight * _fade(passed, tuning), _LEAST_WEIGHT_S), 0.0)
    total[spot[restart]] = 0.0
    rate, all_strikes = cells.rate.copy(), cells.strikes.copy()
    learned = gained > 0
    at = spot[learned]
    rate[at] = (total[at] * rate[at] + summed[learned]) / (total[at] + gained[learned])
    total[spot] += gained
    all_strikes[spot] = strikes
    real = total > 0
    return Absorbed(
        Cells(cells.key[real], rate[real], total[real], all_strikes[real]),
        pairs[ran > 0],
        ignored,
        int(np.count_nonzero(~use)),
    )


class _Batch(NamedTuple):
    """The rows that are observations, by pair, within a pair by time; further columns only make the order total."""

    key: Ints
    seconds: Floats
    rate: Floats
    warm: Bools


def _cleaned(seen: Observations) -> _Batch:
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
    """The same cells, and empty ones for the *keys* that were missing."""
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


def _judge(
    batch: _Batch, cell: Ints, known: Floats, weight: Floats, strikes: Ints, tuning: Tuning
) -> tuple[Bools, Bools, Ints]:
    """Which rows to use, which cells to start afresh, and the strikes of each cell after this batch.

    A row is compared with the median of its cell in this batch, and the median with what the cell knows.
    """
    band = log(tuning.outlier_factor)
    log_rate = np.log(batch.rate)
    count = np.bincount(cell)
    middle = np.cumsum(count) - count + (count - 1) // 2
    median = log_rate[np.lexsort((log_rate, cell))[middle]]
    near = np.abs(log_rate - median[cell]) <= band

    far = (weight > 0) & (np.abs(median - np.log(np.where(weight > 0, known, 1.0))) > band)
    warm = np.bincount(cell, near & batch.warm, known.size).astype(np.int64)
    struck = np.where(far, strikes + warm, 0)
    brought = np.bincount(cell, np.where(near & batch.warm, batch.seconds, 0.0), known.size)
    unsure = (weight / (weight + tuning.even_weight_s) < tuning.outlier_confidence) & (brought >= weight)
    restart = far & (unsure | (struck >= tuning.outlier_strikes))
    return near & ~(far & ~restart)[cell], restart, np.where(restart, 0, struck)


def _fade(seconds: Floats, tuning: Tuning) -> Floats:
    """What is left of a weight after so many seconds of running."""
    return np.exp2(-seconds / tuning.half_life_s)
