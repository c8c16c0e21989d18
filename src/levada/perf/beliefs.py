"""Base class of throughput models: binds jobs, and may learn."""

from typing import ClassVar, Self

import numpy as np

from levada.perf.index_map import NamesByNumber
from levada.perf.model import Floats, Ints, ThroughputModel
from levada.perf.samples import Observations
from levada.perf.tuning import RestartKind


class Beliefs(ThroughputModel):
    """Base class of throughput models for an engine or a simulation, including user-defined ones.

    A subclass must define `rates`. The other defaults fit a constant model that identifies jobs by number.
    """

    #: Whether `observe` and `observe_restart` have an effect; if not, progress is not collected.
    learns: ClassVar[bool] = False

    def attach(self, workloads: NamesByNumber, types: NamesByNumber) -> None:
        """Set the names of workload and GPU type numbers. Both lists may grow."""

    def bind(self, jobs: Ints, workloads: Ints) -> None:
        """Set the workload of each job. Binding again changes it."""

    def unbind(self, jobs: Ints) -> None:
        """Remove ended jobs; what was learned about their workloads remains."""

    def observe(self, seen: Observations) -> None:
        """Learn from a batch of progress intervals, in any order."""

    def observe_restart(self, workload: int, kind: RestartKind | str, seconds: float) -> None:
        """Learn the pause of a workload that started, was resized or stopped."""

    def observe_pairs(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints, rates: Floats) -> None:
        """Learn the rates of jobs that ran on the same devices; the last axis of *rates* is for a and b."""

    def confidence(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """How well the rates are known, in [0, 1]; by default 1 for jobs that are `known`."""
        shape = np.broadcast_shapes(np.shape(jobs), np.shape(gpu_types), np.shape(sizes))
        return np.broadcast_to(np.asarray(self.known(jobs), np.float64), shape)

    def copy(self) -> Self:
        """An independent copy; a constant model may return itself."""
        return self
