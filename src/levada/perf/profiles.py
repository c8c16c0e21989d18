"""Measured speeds of workloads: what a profiler wrote down, and the model that answers from it.

A table has holes. Which values stand in them is decided once, when the model is made, so that a question is one look
into an array:

- **not measured** (NaN) **between** two measured sizes of a workload on a type: on the straight line between them in
  logarithms of size and rate. A size that cannot run makes no line: strictly between it and the next the rate is 0.
- **below** the first measured size: in proportion, r(n) = r(first) n / first.
- **beyond** the last measured size: what it was there. Nobody has seen it go faster.
- **a type** on which a workload was never measured: 0, it cannot run there as far as anybody knows.
- **spread** over several nodes: the measured ratio to the rate on few nodes, on the line between measured sizes in
  logarithm of the size, beyond them as at the nearest; the same rate where it was never measured with more than one
  worker. A size that was measured spread only has that rate on few nodes too.
- **pairs**: as rates alone, at each measured pair; a pair that was measured nowhere on a type is 0.
"""

from typing import Self

import msgspec
import numpy as np

from levada.kernels import rates
from levada.perf.beliefs import Beliefs
from levada.perf.growing import Growing, NameList
from levada.perf.model import Bools, Floats, Ints, gpu_fraction


class Profiles(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Rates in steps/s of whole jobs by workload, GPU type and size. 0 = cannot run there, NaN = not measured."""

    workloads: tuple[str, ...]
    types: tuple[str, ...]
    #: Numbers of workers, ascending, from 1 on.
    sizes: tuple[int, ...]
    #: By workload, type and size: alone on its GPUs, on as few nodes as it needs.
    alone: Floats
    #: The same, spread over several nodes.
    spread: Floats | None = None
    #: By type, size, workload a, workload b: the rate of a when a and b run on the same devices, each with that size.
    together: Floats | None = None
    #: By workload: seconds without progress when its workers change.
    restart_s: Floats | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for arrays that do not fit together and numbers that can be no rate."""
        shape = (len(self.workloads), len(self.types), len(self.sizes))
        for names, what in ((self.workloads, "workload"), (self.types, "type")):
            if len(set(names)) < len(names):
                raise ValueError(f"a {what} stands in the table twice")
        if list(self.sizes) != sorted({size for size in self.sizes if size >= 1}):
            raise ValueError("sizes must ascend from 1 or more")
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
                raise ValueError(f"{name} has the shape {values.shape} instead of {wanted}")
            if (values < 0).any() or np.isinf(values).any() or (name == "restart_s" and np.isnan(values).any()):
                raise ValueError(f"a number in {name} can be none")

    def position(self, workload: str) -> int:
        """The row of a workload, or -1."""
        return self.workloads.index(workload) if workload in self.workloads else -1

    def distributed(self) -> Bools:
        """By workload: it was measured running with more than one worker somewhere."""
        larger = np.array(self.sizes) > 1
        found = (self.alone[:, :, larger] > 0).any(axis=(1, 2))
        if self.spread is not None:
            found |= (self.spread[:, :, larger] > 0).any(axis=(1, 2))
        return np.asarray(found)


class ProfileModel(Beliefs):
    """Beliefs that look a job's workload up in `Profiles`.

    Numbers of workloads and GPU types mean what *workloads* and *types* say, which may grow: a new name is looked up
    when it is first met. A copy knows the names there were; `attach` gives it, or any model, other lists to follow.

    A job whose workload is not in the table, or that was never bound, is not `known`: it makes 1 step/s per worker, up
    to the largest size of the table, on every type. Its restarts take the mean of the table. A fraction of a GPU gives
    that fraction of the rate. O(1) per question, vectorised.
    """

    def __init__(self, profiles: Profiles, workloads: NameList = (), types: NameList = ()) -> None:
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
        # From numbers to rows of the table, by workload, type and job.
        self._row_of_workload = Growing(rows)
        self._column_of_type = Growing(columns)
        self._row_of_job = Growing(rows)
        self.attach(workloads, types)

    def _table(self) -> Floats:
        return np.zeros((len(self.profiles.workloads) + 1, self._columns, self._width))

    def attach(self, workloads: NameList, types: NameList) -> None:
        """From now on numbers mean what these lists say. What is known of earlier numbers stays."""
        self._workloads, self._types = workloads, types

    # Jobs come and go

    def bind(self, jobs: Ints, workloads: Ints) -> None:
        """From now on each job runs at its workload's speed. Binding again changes the workload."""
        self._row_of_workload.follow(self._workloads, self.profiles.workloads)
        self._row_of_job.put(jobs, self._row_of_workload.find(workloads))

    def unbind(self, jobs: Ints) -> None:
        """The jobs are no longer known."""
        self._row_of_job.drop(jobs)

    def copy(self) -> Self:
        """A model that answers the same and whose jobs are its own."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._row_of_workload = self._row_of_workload.copy()
        twin._column_of_type = self._column_of_type.copy()
        twin._row_of_job = self._row_of_job.copy()
        # The lists of names stay with this one: the twin looks up what is in them now.
        twin._row_of_workload.follow(self._workloads, self.profiles.workloads)
        twin._column_of_type.follow(self._types, self.profiles.types)
        twin.attach((), ())
        return twin

    # Asking

    def rate(self, job: int, gpu_type: int, workers: int, spread: int = 1, milli: int = 1000) -> float:
        """Steps per second of the whole job; 0 = cannot run there."""
        table = self._alone if spread <= 1 else self._spread
        return float(self._look(table, np.array(job), np.array(gpu_type), np.array(workers))) * gpu_fraction(milli)

    def rates(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Steps per second on few nodes; at a measured size exactly what was measured."""
        if jobs.ndim != 1 or not jobs.shape == gpu_types.shape == sizes.shape:
            return self._look(self._alone, jobs, gpu_types, sizes)
        self._column_of_type.follow(self._types, self.profiles.types)
        if len(jobs) == 1:
            # One look, without a kernel: nearly always one job starts.
            row, column = self._row_of_job.find_one(jobs.item(0)), self._column_of_type.find_one(gpu_types.item(0))
            return np.array([self._alone.item(row, column, min(max(sizes.item(0), 0), self._width - 1))])
        row_of, column_of = self._row_of_job.shifted, self._column_of_type.shifted
        return rates.look_up_each(self._alone, row_of, column_of, jobs, gpu_types, sizes)

    def rates_by_type(self, jobs: Ints, sizes: Ints, types: int) -> Floats:
        """(jobs, types): `rates` of each job, with its size, on each of the first *types* types."""
        self._column_of_type.follow(self._types, self.profiles.types)
        return rates.look_up(self._alone, self._row_of_job.shifted, self._column_of_type.shifted, jobs, sizes, types)

    def confidence(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """1 where the size was measured, less between, below and beyond, 0 where nothing was; as in `curve`."""
        return self._look(self._confidence, jobs, gpu_types, sizes)

    def pair_rates(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Steps per second of both, in a last axis of length 2; 0 for a pair that was not measured."""
        if self._together is None:
            return super().pair_rates(a, b, gpu_types, sizes)
        return self._look_both(self._together, a, b, gpu_types, sizes)

    def restart_costs_s(self, jobs: Ints, old: Ints, new: Ints) -> Floats:
        """The figure of each workload; 0 where nothing changes."""
        if not self._restarts_cost:
            alike = jobs.shape == old.shape == new.shape
            return np.zeros(jobs.shape if alike else np.broadcast(jobs, old, new).shape)
        return np.where(np.asarray(old) == np.asarray(new), 0.0, self._restart_s[self._row_of_job.find(jobs)])

    def known(self, jobs: Ints) -> Bools:
        """True where the job's workload is in the table."""
        return np.asarray(self._row_of_job.find(jobs) < len(self.profiles.workloads))

    def _look(self, table: Floats, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        # Jobs and sizes are mostly of one shape, and a sum that broadcasts is the dear one: it comes last.
        row = self._row_of_job.find(jobs) * (self._columns * self._width) + self._size(sizes)
        return table.take(row + self._column(gpu_types))

    def _look_both(self, table: Floats, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        return np.stack([table.take(cells) for cells in self._both(a, b, gpu_types, sizes)], axis=-1)

    def _both(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints) -> tuple[Ints, Ints]:
        """Where in a table of pairs *a* beside *b* stands, and where *b* beside *a*."""
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
    """Rates at every size from 0 to the largest, by the rules above. The last axis of *values* goes by *sizes*."""
    answer = np.zeros((*values.shape[:-1], max(sizes, default=0) + 1))
    flat, out = values.reshape(-1, len(sizes)), answer.reshape(-1, answer.shape[-1])
    at = np.array(sizes, np.int64)
    measured = ~np.isnan(flat)
    # Rows with the same measured sizes are filled together: there are few kinds of holes.
    for kind in np.unique(measured, axis=0):
        if kind.any():
            rows = (measured == kind).all(axis=1)
            out[rows] = _filled(flat[rows][:, kind], at[kind], out.shape[1])
    return answer


def _filled(rates: Floats, at: Ints, width: int) -> Floats:
    """Rates at 0 .. width - 1 from those at the sizes *at*, which has no holes."""
    size = np.arange(width)
    left = np.clip(np.searchsorted(at, size, side="right") - 1, 0, len(at) - 1)
    right = np.minimum(left + 1, len(at) - 1)
    low, high = at[left], at[right]
    inside = (size > low) & (high > low)
    way = np.zeros(width)
    way[inside] = np.log(size[inside] / low[inside]) / np.log(high[inside] / low[inside])
    start, stop = rates[:, left], rates[:, right]
    runs = (start > 0) & (stop > 0)
    line = start * (np.where(runs, stop, 1.0) / np.where(runs, start, 1.0)) ** way
    answer = np.where(inside, np.where(runs, line, 0.0), start)
    below = size < at[0]
    answer[:, below] *= size[below] / at[0]
    return answer


def _alone_and_spread(profiles: Profiles) -> tuple[Floats, Floats]:
    """Both at every size; without measurements of spread jobs the two are the same."""
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
    """The ratio at 0 .. width - 1: on lines over the logarithm of the size, 1 where none was measured, and at 1."""
    answer = np.ones((*ratio.shape[:-1], width))
    flat, out = ratio.reshape(-1, len(at)), answer.reshape(-1, width)
    where = np.log(np.maximum(np.arange(width), 1))
    for row in np.flatnonzero((~np.isnan(flat)).any(axis=1)):
        given = ~np.isnan(flat[row])
        out[row, 2:] = np.interp(where[2:], np.log(at[given]), flat[row, given])
    return answer


def _confidence(profiles: Profiles) -> Floats:
    """1 at measured sizes, 1/2 between and below, 1/2 of last / n beyond, 0 where nothing was measured."""
    alone = profiles.alone
    if profiles.spread is not None:
        alone = np.where(np.isnan(alone), profiles.spread, alone)
    measured = ~np.isnan(alone)
    at, size = np.array(profiles.sizes, np.int64), np.arange(max(profiles.sizes, default=0) + 1)
    last = np.max(np.where(measured, at, 0), axis=-1, initial=0)[..., None]
    answer = np.where(size <= last, 0.5, 0.5 * last / np.maximum(size, 1))
    answer[..., at] = np.where(measured, 1.0, answer[..., at])
    answer[..., 0] = 0.0
    return np.where(last > 0, answer, 0.0)
