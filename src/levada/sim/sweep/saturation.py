"""Whether the queue of a run grows without bound: more work comes than the cluster does, and averages mean nothing.

Jobs that come in one by one and are not done yet pile up at a steady pace in an overloaded cluster, while in one that
keeps up their number levels off and only wanders, by some multiple of the root of the number of arrivals. So a run is
saturated when at least 256 jobs have come and, with n of a arrivals still there,

- n > 4 GPUs + 4 sqrt(a): more than any wandering would explain, and
- over the last half of the arrivals n has grown by at least a quarter of itself (half would be a steady pace).

Only counts of jobs are looked at, never a clock, so that the same run ends at the same moment everywhere.
"""

from __future__ import annotations

import math

from levada.errors import LevadaError
from levada.sim.run import Progress

#: Nobody is judged before so many arrivals, and then after every so many.
FIRST, EVERY = 256, 32
#: Jobs per GPU, and multiples of the root of the arrivals, that a queue may have.
PER_GPU, WANDERING = 4, 4
#: What the queue has gained over the last half of the arrivals, as a part of it.
GROWTH = 0.25


class Saturated(LevadaError):
    """The run was stopped because its queue grows without bound."""

    def __init__(self, progress: Progress) -> None:
        waiting = progress.arrived - progress.ended
        super().__init__(f"after {progress.arrived} arrivals {waiting} jobs are there, and more and more")
        self.progress = progress


class Judge:
    """Looks at the progress of a run, and raises Saturated."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        #: Jobs that were there when each had come.
        self._there: list[int] = []
        self._next = FIRST

    def __call__(self, progress: Progress) -> bool:
        """Never asks the run to stop in another way."""
        new = progress.arrived - len(self._there)
        if new > 0:
            self._there += [progress.arrived - progress.ended] * new
            if progress.arrived >= self._next:
                self._next = progress.arrived + EVERY
                if self.is_saturated():
                    raise Saturated(progress)
        return False

    def is_saturated(self) -> bool:
        """What the numbers so far say."""
        came, there = len(self._there), self._there[-1]
        if there <= PER_GPU * self._gpus + WANDERING * math.sqrt(came):
            return False
        return there - self._there[came // 2] >= GROWTH * there
