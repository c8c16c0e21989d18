"""Throughput model learned from progress: a curve per workload and GPU type."""

from math import isfinite
from typing import ClassVar, NamedTuple, Self

import numpy as np

from levada.perf.beliefs import Beliefs
from levada.perf.estimator_state import EstimatorState
from levada.perf.fitted_curves import Fitted, assemble, smoothed
from levada.perf.lookup import Lookup
from levada.perf.model import Bools, Floats, Ints
from levada.perf.samples import (
    NO_CELLS,
    Cells,
    Observations,
    cell_key,
    pair_of,
    remove_workloads,
    split_cell,
    split_pair,
    update_cells,
)
from levada.perf.tuning import RestartKind, Tuning

#: Minimum pause in the geometric mean.
_SHORTEST_PAUSE_S = 0.001


class Point(NamedTuple):
    """The observed rate of a workload at one size."""

    gpu_type: int
    workers: int
    #: Steps/s.
    rate: float
    #: Observed running in seconds; older observations count less.
    weight_s: float


class Estimator(Beliefs):
    """Learns online from observed rates.

    See `curve` for curves, `samples` for decay and outliers, `fitted_curves` for GPU types on which a workload has not
    run. A job of an unknown workload has 1 step/s per worker, and is not `known`. Spreading has no cost; a fraction of
    a GPU gives that fraction of the rate. Pairs on shared devices are not learned: their rates are 0.

    Invalid input does not raise: it is counted in `ignored`, and outliers in `outliers`. Curves are fitted on demand,
    and only those whose observations changed.
    """

    learns: ClassVar[bool] = True

    def __init__(self, tuning: Tuning | None = None) -> None:
        self.tuning = tuning or Tuning()
        self.ignored = 0
        self.outliers = 0
        # Arrays below are replaced, not modified: copies share them.
        self._bound = Lookup()
        self._cells: Cells = NO_CELLS
        self._smooth: Cells = NO_CELLS
        self._stale: Ints = NO_CELLS.key  # pairs observed since their curves were fitted
        self._fitted: Fitted | None = None
        self._restarts: dict[tuple[int, RestartKind], tuple[float, float]] = {}
        #: Workloads, least recently observed first; an ordered set.
        self._seen: dict[int, None] = {}

    # Learning

    def bind(self, jobs: Ints, workloads: Ints) -> None:
        """Set the workload of each job. Binding again changes it."""
        jobs, workloads = np.broadcast_arrays(np.atleast_1d(jobs), np.atleast_1d(workloads))
        self._bound = self._bound.updated(jobs.astype(np.int64), workloads.astype(np.int64))

    def unbind(self, jobs: Ints) -> None:
        """Remove jobs; what was learned about their workloads remains."""
        self._bound = self._bound.without(jobs)

    def observe(self, seen: Observations) -> None:
        """Learn from a batch of progress intervals, in any order."""
        update = update_cells(self._cells, seen, self.tuning)
        self._cells = update.cells
        self.ignored += update.ignored
        self.outliers += update.outliers
        if update.touched.size:
            self._stale = np.union1d(self._stale, update.touched)
            self._fitted = None
            for workload in dict.fromkeys(split_pair(update.touched)[0].tolist()):
                self._seen.pop(workload, None)
                self._seen[workload] = None
            if len(self._seen) > 1.25 * self.tuning.most_workloads:
                self._forget()

    def _forget(self) -> None:
        """Drop the least recently observed workloads without jobs; a quarter at a time."""
        active = set(self._bound.values.tolist())
        idle = [workload for workload in self._seen if workload not in active]
        gone = idle[: max(len(self._seen) - self.tuning.most_workloads, 0)]
        for workload in gone:
            del self._seen[workload]
            for kind in RestartKind:
                self._restarts.pop((workload, kind), None)
        dropped = np.array(gone, np.int64)
        self._cells, self._smooth = remove_workloads(self._cells, dropped), remove_workloads(self._smooth, dropped)
        self._stale = self._stale[np.isin(split_pair(self._stale)[0], dropped, invert=True)]

    def observe_restart(self, workload: int, kind: RestartKind | str, seconds: float) -> None:
        """Learn the pause of a workload that started, was resized or stopped."""
        if workload < 0 or kind not in tuple(RestartKind) or not (isfinite(seconds) and seconds >= 0):
            self.ignored += 1
            return
        kind = RestartKind(kind)
        mean, count = self._restarts.get((workload, kind), (self._expected_s(kind), 1.0))
        # A single hanging start must not prevent later changes of the workload.
        seconds = min(seconds, self.tuning.outlier_factor * max(mean, 1.0))
        count = min(count + 1.0, float(self.tuning.restart_memory))
        # Geometric mean: an in-process resize is 100 times cheaper than expected, and the mean must reflect that after
        # a few of them.
        ratio = max(seconds, _SHORTEST_PAUSE_S) / max(mean, _SHORTEST_PAUSE_S)
        self._restarts[workload, kind] = (max(mean, _SHORTEST_PAUSE_S) * ratio ** (1.0 / count), count)

    # Queries

    def rates(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Steps per second, from the curves."""
        fitted, row, column = self._locate(jobs, gpu_types)
        return fitted.curves.rates(fitted.curve[row, column], sizes) * fitted.scale[row, column]

    def speedups(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Rates relative to one worker, from the curves."""
        fitted, row, column = self._locate(jobs, gpu_types)
        curve = fitted.curve[row, column]
        return fitted.curves.rates(curve, sizes) / fitted.curves.rates(curve, np.array(1))

    def confidence(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """Confidence of the rates, in [0, 1]; 0 = a guess."""
        fitted, row, column = self._locate(jobs, gpu_types)
        return fitted.curves.confidence(fitted.curve[row, column], sizes) * fitted.trust[row, column]

    def restart_costs_s(self, jobs: Ints, old: Ints, new: Ints, expected_s: Floats | None = None) -> Floats:
        """`restart_cost_s` of many jobs at once, *expected_s* without observed pauses. O(jobs + workloads)."""
        jobs, old, new = np.broadcast_arrays(jobs, old, new)
        workloads = self._bound.find(jobs)
        cost = np.zeros(workloads.shape)
        for kind, applies in (
            (RestartKind.START, (old == 0) & (new > 0)),
            (RestartKind.STOP, (old > 0) & (new == 0)),
            (RestartKind.RESIZE, (old > 0) & (new > 0) & (old != new)),
        ):
            learned = {workload: mean for (workload, cause), (mean, _) in self._restarts.items() if cause == kind}
            means = np.full(max(learned, default=-1) + 2, np.nan)
            means[list(learned)] = list(learned.values())
            # Workloads without observed pauses use the last value.
            mean = means[np.where((workloads >= 0) & (workloads < len(means) - 1), workloads, len(means) - 1)]
            unseen = self._expected_s(kind) if expected_s is None else expected_s
            cost = np.where(applies, np.where(np.isnan(mean), unseen, mean), cost)
        return cost

    def known(self, jobs: Ints) -> Bools:
        """Whether the workload of each job was observed on any GPU type."""
        return np.asarray(self._ready().workloads.find(self._bound.find(jobs)) >= 0)

    def seen(self) -> tuple[Ints, Ints, Ints]:
        """Workload, GPU type and size of all observed cells, in this order."""
        return split_cell(self._cells.key)

    def points(self, workload: int) -> list[Point]:
        """The observed rates of a workload, by GPU type and size."""
        workloads, gpu_types, sizes = split_cell(self._cells.key)
        rows = np.flatnonzero(workloads == workload)
        columns = (gpu_types[rows], sizes[rows], self._cells.rate[rows], self._cells.weight[rows])
        return [Point(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def believed(self, workloads: Ints, gpu_types: Ints, sizes: Ints) -> tuple[Floats, Floats]:
        """Rates and confidence by workload instead of job."""
        fitted = self._ready()
        row, column = fitted.workloads.find(workloads), fitted.types.find(gpu_types)
        curve = fitted.curve[row, column]
        rates = fitted.curves.rates(curve, sizes) * fitted.scale[row, column]
        return rates, fitted.curves.confidence(curve, sizes) * fitted.trust[row, column]

    def pauses(self, workload: int) -> dict[RestartKind, tuple[float, int]]:
        """Estimated pauses of a workload in seconds, and the number of observed pauses in each mean."""
        estimates = {kind: self._restarts.get((workload, kind)) for kind in RestartKind}
        return {kind: (pause[0], round(pause[1]) - 1) for kind, pause in estimates.items() if pause is not None}

    # State

    def copy(self) -> Self:
        """An independent copy. O(workloads)."""
        other = type(self)(self.tuning)
        other.ignored, other.outliers = self.ignored, self.outliers
        other._bound, other._cells, other._stale = self._bound, self._cells, self._stale
        other._smooth, other._fitted = self._smooth, self._fitted
        other._restarts, other._seen = self._restarts.copy(), self._seen.copy()
        return other

    def state(self) -> EstimatorState:
        """The state, for `restore`."""
        workload, gpu_type, workers = split_cell(self._cells.key)
        restarts = sorted(self._restarts.items())
        return EstimatorState(
            jobs=self._bound.keys.tolist(),
            job_workload=self._bound.values.tolist(),
            workload=workload.tolist(),
            gpu_type=gpu_type.tolist(),
            workers=workers.tolist(),
            rate=self._cells.rate.tolist(),
            weight_s=self._cells.weight.tolist(),
            strikes=self._cells.strikes.tolist(),
            restart_workload=[workload for (workload, _), _ in restarts],
            restart_kind=[kind for (_, kind), _ in restarts],
            restart_s=[mean for _, (mean, _) in restarts],
            restart_count=[count for _, (_, count) in restarts],
            ignored=self.ignored,
            outliers=self.outliers,
            seen=list(self._seen),
        )

    @classmethod
    def restore(cls, state: EstimatorState, tuning: Tuning | None = None) -> "Estimator":
        """Restore an estimator from its state; results are bit-identical."""
        self = cls(tuning)
        self.bind(np.array(state.jobs, np.int64), np.array(state.job_workload, np.int64))
        columns = (np.array(column, np.int64) for column in (state.workload, state.gpu_type, state.workers))
        self._cells = Cells(
            cell_key(*columns),
            np.array(state.rate, np.float64),
            np.array(state.weight_s, np.float64),
            np.array(state.strikes, np.int64),
        )
        self._stale = np.unique(pair_of(self._cells.key))
        owners = zip(state.restart_workload, state.restart_kind, strict=True)
        self._restarts = dict(zip(owners, zip(state.restart_s, state.restart_count, strict=True), strict=True))
        self.ignored, self.outliers = state.ignored, state.outliers
        self._seen = dict.fromkeys(state.seen)
        return self

    def _locate(self, jobs: Ints, gpu_types: Ints) -> tuple[Fitted, Ints, Ints]:
        """The fitted curves, and row and column of each element in their tables."""
        fitted = self._ready()
        return fitted, fitted.workloads.find(self._bound.find(jobs)), fitted.types.find(gpu_types)

    def _ready(self) -> Fitted:
        """The fitted curves; fits those whose observations changed."""
        if self._fitted is None:
            self._smooth = smoothed(self._cells, self._stale, self._smooth)
            self._stale = NO_CELLS.key
            self._fitted = assemble(self._smooth, self.tuning)
        return self._fitted

    def _expected_s(self, kind: RestartKind) -> float:
        tuning = self.tuning
        return {
            RestartKind.START: tuning.start_s,
            RestartKind.RESIZE: tuning.resize_s,
            RestartKind.STOP: tuning.stop_s,
        }[kind]
