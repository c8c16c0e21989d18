"""A throughput model as the engine keeps it: jobs come and go, and what is seen of them may be learned."""

from typing import ClassVar, Self

import numpy as np

from levada.perf.growing import NameList
from levada.perf.model import Floats, Ints, ThroughputModel
from levada.perf.samples import Observations
from levada.perf.tuning import RestartKind


class Beliefs(ThroughputModel):
    """The base class of throughput models for an engine or a simulation, also of a user's own.

    A subclass must have `rates`; everything else has a default, for a model that knows jobs by their numbers and never
    changes.
    """

    #: Whether `observe` and `observe_restart` do anything; progress is not even collected for a model that ignores it.
    learns: ClassVar[bool] = False

    def attach(self, workloads: NameList, types: NameList) -> None:
        """Use these names for numbers of workloads and GPU types from now on. Both lists may grow."""

    def bind(self, jobs: Ints, workloads: Ints) -> None:
        """Let each job run at the speed of its workload. Binding again changes the workload."""

    def unbind(self, jobs: Ints) -> None:
        """Forget jobs that are over; what their workloads taught stays."""

    def observe(self, seen: Observations) -> None:
        """Learn from a batch of intervals of progress; the order of its rows does not matter."""

    def observe_restart(self, workload: int, kind: RestartKind | str, seconds: float) -> None:
        """Learn how long a workload made no progress while it started, was resized or stopped."""

    def observe_pairs(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints, rates: Floats) -> None:
        """Learn the rates of jobs that ran on the same devices; the last axis of *rates* is for a and b."""

    def confidence(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        """How well the rates are known, in [0, 1]; by default 1 for jobs that are `known`."""
        shape = np.broadcast_shapes(np.shape(jobs), np.shape(gpu_types), np.shape(sizes))
        return np.broadcast_to(np.asarray(self.known(jobs), np.float64), shape)

    def copy(self) -> Self:
        """A model that answers the same and changes on its own; a model that never changes may return itself."""
        return self
