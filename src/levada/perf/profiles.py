"""Measured speeds of workloads, and the throughput model that looks them up.

Missing values (NaN) of a table are filled once, when the model is created, so that a lookup is one array access:

- **between** two measured sizes of a workload on a type: log-log interpolation. If one of the two rates is 0, the rates
  strictly between are 0.
- **below** the first measured size: proportional, r(n) = r(first) n / first.
- **beyond** the last measured size: constant.
- **a type** without measurements of a workload: 0.
- **spread** over several nodes: the measured ratio to the rate on few nodes, interpolated linearly in the logarithm of
  the size, constant outside; 1 if it was never measured with more than one worker. A size that was only measured spread
  has the same rate on few nodes.
- **pairs**: like single workloads, for each measured pair; a pair without measurements on a type is 0.
"""

from typing import Self

import msgspec
import numpy as np

from levada.kernels import rates
from levada.perf.beliefs import Beliefs
from levada.perf.index_map import IndexMap, NamesByNumber
from levada.perf.model import Bools, Floats, Ints, gpu_fraction


class Profiles(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Rates in steps/s of whole jobs by workload, GPU type and size. 0 = cannot run, NaN = not measured."""

    workloads: tuple[str, ...]
    types: tuple[str, ...]
    #: Numbers of workers, ascending, from 1 on.
    sizes: tuple[int, ...]
    #: By workload, type and size: alone on its GPUs, on as few nodes as possible.
    alone: Floats
    #: The same, spread over several nodes.
    spread: Floats | None = None
    #: By type, size, workload a, workload b: the rate of a when a and b run on the same devices, each with that size.
    together: Floats | None = None
    #: By workload: seconds without progress when its workers change.
    restart_s: Floats | None = None

    def __post_init__(self) -> None:
        """Validate; raises ValueError for inconsistent shapes and invalid numbers."""
        shape = (len(self.workloads), len(self.types), len(self.sizes))
        for names, label in ((self.workloads, "workload"), (self.types, "type")):
            if len(set(names)) < len(names):
                raise ValueError(f"a {label} occurs twice")
        if list(self.sizes) != sorted({size for size in self.sizes if size >= 1}):
            raise ValueError("sizes must be at least 1 and ascending")
        expected = {
            "alone": shape,
            "spread": shape,
            "together": (shape[1], shape[2], shape[0], shape[0]),
            "restart_s": shape[:1],
        }
        for name, wanted in expected.items():
            values = getattr(self, name)
            if values is None:
                continue
            if values.shape != wanted:
                raise ValueError(f"{name} has shape {values.shape}, expected {wanted}")
            if (values < 0).any() or np.isinf(values).any() or (name == "restart_s" and np.isnan(values).any()):
                raise ValueError(f"{name} has negative or non-finite numbers")

    def position(self, workload: str) -> int:
        """The row of a workload, or -1."""
        return self.workloads.index(workload) if workload in self.workloads else -1

    def distributed(self) -> Bools:
        """By workload: whether it was measured with more than one worker on any type."""
        larger = np.array(self.sizes) > 1
        result = (self.alone[:, :, larger] > 0).any(axis=(1, 2))
        if self.spread is not None:
            result |= (self.spread[:, :, larger] > 0).any(axis=(1, 2))
        return np.asarray(result)


class ProfileModel(Beliefs):
    """Throughput model that looks up the workload of a job in `Profiles`.

    *workloads* and *types* are the names of workload and GPU type numbers. They may grow: new names are looked up on
    first use. A copy knows the names at the time of the copy; `attach` sets other lists.

    A job that is not bound, or whose workload is not in the table, is not `known`: it has 1 step/s per worker, up to
    the largest size of the table, on all types, and the mean restart cost. A fraction of a GPU gives that fraction of
    the rate. O(1) per element, vectorized.
    """

    def __init__(self, profiles: Profiles, workloads: NamesByNumber = (), types: NamesByNumber = ()) -> None:
        self.profiles = profiles
        rows, columns = len(profiles.workloads), len(profiles.types)
        self._columns, self._width = columns + 1, max(profiles.sizes, default=0) + 1
        # The last row is for workloads that are not in the table, the last column for types that are not.
        self._alone = self._table()
        self._spread = self._alone
        self._alone[:rows, :columns], spread = _alone_and_spread(profiles)
        self._alone[rows] = np.arange(self._width)
        if profiles.spread is not None:
            self._spread = self._alone.copy()
            self._spread[:rows, :columns] = spread
        self._confidence = self._table()
        self._confidence[:rows, :columns] = _confidence(profiles)
        self._together: Floats | None = None
        if profiles.together is not None:
            pairs = profiles.together.transpose(2, 3, 0, 1)
            self._together = np.zeros((rows + 1, rows + 1, columns + 1, self._width))
            self._together[:rows, :rows, :columns] = dense(pairs, profiles.sizes)
        restart_s = np.zeros(rows) if profiles.restart_s is None else profiles.restart_s
        self._restart_s = np.append(restart_s, restart_s.mean() if rows else 0.0)
        self._restarts_cost = bool(self._restart_s.any())
        # Rows of the table by numbers of workloads, types and jobs.
        self._row_of_workload = IndexMap(rows)
        self._column_of_type = IndexMap(columns)
        self._row_of_job = IndexMap(rows)
        self.attach(workloads, types)

    def _table(self) -> Floats:
        return np.zeros((len(self.profiles.workloads) + 1, self._columns, self._width))

    def attach(self, workloads: NamesByNumber, types: NamesByNumber) -> None:
        """Set the names of workload and GPU type numbers. Numbers that were looked up before keep their rows."""
        self._workloads, self._types = workloads, types

    # Jobs

    def bind(self, jobs: Ints, workloads: Ints) -> None:
        """Set the workload of each job. Binding again changes it."""
        self._row_of_workload.follow(self._workloads, self.profiles.workloads)
        self._row_of_job.put(jobs, self._row_of_workload.find(workloads))

    def unbind(self, jobs: Ints) -> None:
        """Remove jobs."""
        self._row_of_job.drop(jobs)

    def copy(self) -> Self:
        """A copy with independent jobs."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        copy._row_of_workload = self._row_of_workload.copy()
        copy._column_of_type = self._column_of_type.copy()
        copy._row_of_job = self._row_of_job.copy()
        # The copy looks up all current names now, since it does not follow the lists.
        copy._row_of_workload.follow(self._workloads, self.profiles.workloads)
        copy._column_of_type.follow(self._types, self.profiles.types)
        copy.attach((), ())
        return copy

    # Queries

    def rate(self, job: int, gpu_type: int, workers: int, spread: int = 1, milli: int = 1000) -> float:
        """Steps per second of the whole job; 0 = cannot run on the type."""
        table = self._alone if spread <= 1 else self._spread
        return self._lookup_one(table, job, gpu_type, workers) * gpu_fraction(milli)

    def rates(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Steps per second on few nodes; measured sizes have exactly the measured rate."""
        if jobs.ndim != 1 or not jobs.shape == gpu_types.shape == sizes.shape:
            return self._lookup(self._alone, jobs, gpu_types, sizes)
        if len(jobs) == 1:
            # Without a kernel: usually one job starts.
            return np.array([self._lookup_one(self._alone, jobs.item(), gpu_types.item(), sizes.item())])
        self._column_of_type.follow(self._types, self.profiles.types)
        row_of, column_of = self._row_of_job.shifted, self._column_of_type.shifted
        return rates.look_up_each(self._alone, row_of, column_of, jobs, gpu_types, sizes)

    def rates_by_type(self, jobs: Ints, sizes: Ints, types: int) -> Floats:
        """(jobs, types): `rates` of each job, with its size, on each of the first *types* types."""
        self._column_of_type.follow(self._types, self.profiles.types)
        return rates.look_up(self._alone, self._row_of_job.shifted, self._column_of_type.shifted, jobs, sizes, types)

    def confidence(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """1 for measured sizes, less between, below and beyond, 0 without measurements; as in `curve`."""
        return self._lookup(self._confidence, jobs, gpu_types, sizes)

    def pair_rates(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Steps per second of both, in a last axis of length 2; 0 for pairs without measurement."""
        if self._together is None:
            return super().pair_rates(a, b, gpu_types, sizes)
        return self._lookup_pairs(self._together, a, b, gpu_types, sizes)

    def restart_costs_s(self, jobs: Ints, old: Ints, new: Ints) -> Floats:
        """The cost of each workload; 0 if the size does not change."""
        if not self._restarts_cost:
            same_shape = jobs.shape == old.shape == new.shape
            return np.zeros(jobs.shape if same_shape else np.broadcast(jobs, old, new).shape)
        return np.where(np.asarray(old) == np.asarray(new), 0.0, self._restart_s[self._row_of_job.find(jobs)])

    def known(self, jobs: Ints) -> Bools:
        """Whether the workload of each job is in the table."""
        return np.asarray(self._row_of_job.find(jobs) < len(self.profiles.workloads))

    def _lookup_one(self, table: Floats, job: int, gpu_type: int, workers: int) -> float:
        self._column_of_type.follow(self._types, self.profiles.types)
        row, column = self._row_of_job.find_one(job), self._column_of_type.find_one(gpu_type)
        return table.item(row, column, min(max(workers, 0), self._width - 1))

    def _lookup(self, table: Floats, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        # Jobs and sizes mostly have the same shape; the sum that broadcasts is the most expensive and comes last.
        row = self._row_of_job.find(jobs) * (self._columns * self._width) + self._size(sizes)
        return table.take(row + self._column(gpu_types))

    def _lookup_pairs(self, table: Floats, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        return np.stack([table.take(cells) for cells in self._pair_cells(a, b, gpu_types, sizes)], axis=-1)

    def _pair_cells(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints) -> tuple[Ints, Ints]:
        """Flat indices of (a, b) and of (b, a) in a table of pairs."""
        first, second = self._row_of_job.find(a), self._row_of_job.find(b)
        block, rows = self._columns * self._width, len(self._restart_s)
        cell = self._size(sizes) + self._column(gpu_types)
        return (first * (rows * block) + second * block) + cell, (second * (rows * block) + first * block) + cell

    def _size(self, sizes: Ints) -> Ints:
        return np.minimum(np.maximum(sizes, 0), self._width - 1)

    def _column(self, gpu_types: Ints) -> Ints:
        self._column_of_type.follow(self._types, self.profiles.types)
        return self._column_of_type.find(gpu_types) * self._width


def dense(values: Floats, sizes: tuple[int, ...]) -> Floats:
    """Rates at all sizes from 0 to the largest, by the rules above. The last axis of *values* has *sizes*."""
    result = np.zeros((*values.shape[:-1], max(sizes, default=0) + 1))
    flat, out = values.reshape(-1, len(sizes)), result.reshape(-1, result.shape[-1])
    at = np.array(sizes, np.int64)
    measured = ~np.isnan(flat)
    # Rows with the same measured sizes are filled together: there are few patterns.
    for pattern in np.unique(measured, axis=0):
        if pattern.any():
            rows = (measured == pattern).all(axis=1)
            out[rows] = _interpolate(flat[rows][:, pattern], at[pattern], out.shape[1])
    return result


def _interpolate(rates: Floats, at: Ints, width: int) -> Floats:
    """Rates at sizes 0 .. width - 1 from rates at the sizes *at*."""
    size = np.arange(width)
    left = np.clip(np.searchsorted(at, size, side="right") - 1, 0, len(at) - 1)
    right = np.minimum(left + 1, len(at) - 1)
    low, high = at[left], at[right]
    inside = (size > low) & (high > low)
    fraction = np.zeros(width)
    fraction[inside] = np.log(size[inside] / low[inside]) / np.log(high[inside] / low[inside])
    start, stop = rates[:, left], rates[:, right]
    runs = (start > 0) & (stop > 0)
    line = start * (np.where(runs, stop, 1.0) / np.where(runs, start, 1.0)) ** fraction
    result = np.where(inside, np.where(runs, line, 0.0), start)
    below = size < at[0]
    result[:, below] *= size[below] / at[0]
    return result


def _alone_and_spread(profiles: Profiles) -> tuple[Floats, Floats]:
    """Rates on few nodes and spread, at all sizes; equal without measurements of spread jobs."""
    if profiles.spread is None:
        same = dense(profiles.alone, profiles.sizes)
        return same, same
    measured = ~np.isnan(profiles.spread)
    alone = dense(np.where(np.isnan(profiles.alone), profiles.spread, profiles.alone), profiles.sizes)
    at = np.array(profiles.sizes, np.int64)
    few = alone[..., at]
    comparable = measured & (few > 0) & (at > 1)
    ratio = np.where(comparable, profiles.spread / np.where(comparable, few, 1.0), np.nan)
    spread = alone * _ratios(ratio, at, alone.shape[-1])
    spread[..., at] = np.where(measured, profiles.spread, spread[..., at])
    return alone, spread


def _ratios(ratio: Floats, at: Ints, width: int) -> Floats:
    """Ratios at sizes 0 .. width - 1, linear in the logarithm of the size; 1 without measurements, and at size 1."""
    result = np.ones((*ratio.shape[:-1], width))
    flat, out = ratio.reshape(-1, len(at)), result.reshape(-1, width)
    log_size = np.log(np.maximum(np.arange(width), 1))
    for row in np.flatnonzero((~np.isnan(flat)).any(axis=1)):
        measured = ~np.isnan(flat[row])
        out[row, 2:] = np.interp(log_size[2:], np.log(at[measured]), flat[row, measured])
    return result


def _confidence(profiles: Profiles) -> Floats:
    """1 at measured sizes, 1/2 between and below, last / 2n beyond, 0 without measurements."""
    alone = profiles.alone
    if profiles.spread is not None:
        alone = np.where(np.isnan(alone), profiles.spread, alone)
    measured = ~np.isnan(alone)
    at, size = np.array(profiles.sizes, np.int64), np.arange(max(profiles.sizes, default=0) + 1)
    last = np.max(np.where(measured, at, 0), axis=-1, initial=0)[..., None]
    result = np.where(size <= last, 0.5, 0.5 * last / np.maximum(size, 1))
    result[..., at] = np.where(measured, 1.0, result[..., at])
    result[..., 0] = 0.0
    return np.where(last > 0, result, 0.0)
