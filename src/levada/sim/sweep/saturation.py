"""Detect a queue that grows without bound, so that averages are meaningless.

In an overloaded cluster the number of unfinished jobs grows at a constant rate; otherwise it levels off and fluctuates
by a multiple of the square root of the number of arrivals. A run is saturated if at least 256 jobs have arrived and,
with n of a arrivals unfinished,

- n > 4 GPUs + 4 sqrt(a), which fluctuation does not explain, and
- n grew by at least n/4 over the last half of the arrivals (n/2 would be constant growth).

Only counts of jobs matter, not time, so the same run stops at the same point everywhere.
"""

from __future__ import annotations

import math

from levada.errors import LevadaError
from levada.sim.run import RunProgress

#: Arrivals before the first check, and between two checks.
FIRST, EVERY = 256, 32
#: Allowed queue: jobs per GPU, and multiples of the square root of the arrivals.
PER_GPU, FLUCTUATION = 4, 4
#: Growth of the queue over the last half of the arrivals, as a fraction of it.
GROWTH = 0.25


class Saturated(LevadaError):
    """The run was stopped because its queue grows without bound."""

    def __init__(self, progress: RunProgress) -> None:
        unfinished = progress.arrived - progress.ended
        super().__init__(
            f"after {progress.arrived} arrivals {unfinished} jobs are unfinished, and the queue keeps growing"
        )
        self.progress = progress


class SaturationCheck:
    """Observes the progress of a run and raises Saturated."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        #: Unfinished jobs at each arrival.
        self._unfinished: list[int] = []
        self._next = FIRST

    def __call__(self, progress: RunProgress) -> bool:
        """Raise Saturated if the run is saturated; else return False: do not stop."""
        new = progress.arrived - len(self._unfinished)
        if new > 0:
            self._unfinished += [progress.arrived - progress.ended] * new
            if progress.arrived >= self._next:
                self._next = progress.arrived + EVERY
                if self.is_saturated():
                    raise Saturated(progress)
        return False

    def is_saturated(self) -> bool:
        """Return whether the queue grows without bound."""
        arrived, unfinished = len(self._unfinished), self._unfinished[-1]
        if unfinished <= PER_GPU * self._gpus + FLUCTUATION * math.sqrt(arrived):
            return False
        return unfinished - self._unfinished[arrived // 2] >= GROWTH * unfinished
