"""Throughput model from given tables, for `levada allocate` and tests."""

from collections.abc import Iterable, Mapping
from math import isfinite

import msgspec
import numpy as np

from levada.perf.beliefs import Beliefs
from levada.perf.curve import Curves
from levada.perf.lookup import Lookup
from levada.perf.model import Bools, Floats, Ints

#: Job rows are packed two to a key.
_ROW_BITS = 31


class JobSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Speeds of one job; both tables are optional."""

    job: int
    #: Speed-up by number of workers, relative to one worker.
    speedup: Mapping[int, float] = {}
    #: Steps/s of the whole job with `scale_factor` workers, by GPU type; 0 = cannot run on the type.
    throughput: Mapping[int, float] = {}
    #: Number of workers of the throughput.
    scale_factor: int = 1


class PairSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """Rates of two jobs on the same devices, each at its scale factor."""

    a: int
    b: int
    #: Steps/s of a and of b, by GPU type.
    throughput: Mapping[int, tuple[float, float]]


class TableModel(Beliefs):
    """Returns the given values, even if they are not monotone.

    - Sizes between those of a speed-up table are interpolated linearly; beyond the last size the speed-up is constant.
      The speed-up of one worker is 1: (1, 1) is added if missing, otherwise the table is divided by its value at 1.
      Without a table, speed-up is linear.
    - rate = throughput x speed-up(size) / speed-up(scale factor). A job without throughput has 1 step/s x speed-up on
      all types; a job with throughput has rate 0 on types that it does not list.
    - A job that is not in the table has 1 step/s per worker, and is not `known`.
    - Spreading has no cost; a fraction of a GPU gives that fraction of the rate.

    `rates` is O(log n) per element, vectorized.
    """

    def __init__(self, jobs: Iterable[JobSpeed], pairs: Iterable[PairSpeed] = (), *, restart_s: float = 0.0) -> None:
        """Each job must occur once. Raises ValueError for invalid numbers."""
        rows = list(jobs)
        numbers = np.array([row.job for row in rows], np.int64)
        self._rows = Lookup().updated(numbers, np.arange(numbers.size))
        if self._rows.keys.size < numbers.size:
            raise ValueError("a job occurs twice")
        self._restart_s = _checked(restart_s)

        # Columns by job row; the last row is for jobs that are not in the table (index -1).
        self._known = np.array([bool(row.speedup or row.throughput) for row in rows] + [False])
        self._curve = np.zeros(len(rows) + 1, np.int64)
        scaled = [index for index, row in enumerate(rows) if row.speedup]
        tables = [_points(rows[index].speedup) for index in scaled]
        self._curve[scaled] = np.arange(1, len(scaled) + 1)
        self._curves = Curves(
            np.array([size for table in tables for size in table], np.int64),
            np.array([value for table in tables for value in table.values()], np.float64),
            np.array([len(table) for table in tables], np.int64),
        )
        factors = np.array([row.scale_factor for row in rows] + [1], np.int64)
        if (factors < 1).any():
            raise ValueError("a scale factor must be at least 1")
        has_rates = np.array([bool(row.throughput) for row in rows] + [False])
        self._base = np.where(has_rates, self._curves.rates(self._curve, factors), 1.0)

        # Throughput by job row and GPU type; the last column is for types that are not in the table.
        pairs = list(pairs)
        kinds = [kind for row in rows for kind in row.throughput] + [kind for pair in pairs for kind in pair.throughput]
        if min(kinds, default=0) < 0:
            raise ValueError("a GPU type is negative")
        self._types = max(kinds, default=-1) + 1
        self._throughput = np.where(has_rates, 0.0, 1.0)[:, None].repeat(self._types + 1, axis=1)
        for index, row in enumerate(rows):
            for kind, value in row.throughput.items():
                self._throughput[index, kind] = _checked(value)
        self._build_pairs(pairs)

    def _build_pairs(self, pairs: list[PairSpeed]) -> None:
        ends = self._rows.find(np.array([(pair.a, pair.b) for pair in pairs], np.int64).reshape(-1, 2))
        if (ends < 0).any():
            raise ValueError("a pair names a job that is not in the table")
        low, high = ends.min(axis=1), ends.max(axis=1)
        self._pairs = Lookup().updated((low << _ROW_BITS) + high, np.arange(low.size))
        # By pair, GPU type and member (lower row first); the last pair is for pairs that are not in the table.
        self._together = np.zeros((low.size + 1, self._types + 1, 2))
        for index, pair in enumerate(pairs):
            swapped = ends[index, 0] > ends[index, 1]
            for kind, (a, b) in pair.throughput.items():
                self._together[index, kind] = (_checked(b), _checked(a)) if swapped else (_checked(a), _checked(b))

    def rates(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Steps per second; exactly the given throughput at the scale factor."""
        rows = self._rows.find(jobs)
        return self._throughput[rows, self._column(gpu_types)] * self._relative(rows, sizes)

    def speedups(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """The given speed-ups; linear on types on which the job cannot run."""
        rows = self._rows.find(jobs)
        runs = self._throughput[rows, self._column(gpu_types)] > 0
        return self._curves.rates(np.where(runs, self._curve[rows], 0), sizes)

    def pair_rates(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Steps per second of both, in a last axis of length 2; 0 for pairs and types without data."""
        first, second = self._rows.find(a), self._rows.find(b)
        pairs = self._pairs.find((np.minimum(first, second) << _ROW_BITS) + np.maximum(first, second))
        column = self._column(gpu_types)
        swapped = (first > second).astype(np.int64)
        return np.stack(
            [
                self._together[pairs, column, swapped] * self._relative(first, sizes),
                self._together[pairs, column, 1 - swapped] * self._relative(second, sizes),
            ],
            axis=-1,
        )

    def restart_costs_s(self, jobs: Ints, old: Ints, new: Ints) -> Floats:
        """The given cost for all jobs; 0 if the size does not change."""
        return np.where(np.asarray(old) == np.asarray(new), 0.0, self._restart_s)

    def known(self, jobs: Ints) -> Bools:
        """Whether each job has a speed-up table or a throughput."""
        return np.asarray(self._known[self._rows.find(jobs)])

    def _column(self, gpu_types: Ints) -> Ints:
        kinds = np.asarray(gpu_types, np.int64)
        return np.where((kinds >= 0) & (kinds < self._types), kinds, self._types)

    def _relative(self, rows: Ints, sizes: Ints) -> Floats:
        """Speed relative to the scale factor; 0 if the speed-up of the scale factor is 0."""
        base = self._base[rows]
        scaled = self._curves.rates(self._curve[rows], sizes)
        return np.where(base > 0, scaled / np.where(base > 0, base, 1.0), 0.0)


def _points(speedup: Mapping[int, float]) -> dict[int, float]:
    """The points of a table by ascending size, with 1 at one worker; size 0 is ignored."""
    one = _checked(speedup.get(1, 1.0))
    if one == 0:
        raise ValueError("the speed-up of one worker must not be 0")
    if min(speedup) < 0:
        raise ValueError(f"invalid number of workers: {min(speedup)}")
    points = {1: 1.0} | {size: _checked(value) / one for size, value in speedup.items() if size > 0}
    return dict(sorted(points.items()))


def _checked(value: float) -> float:
    if not (isfinite(value) and value >= 0):
        raise ValueError(f"invalid speed {value}: must be finite and not negative")
    return float(value)
