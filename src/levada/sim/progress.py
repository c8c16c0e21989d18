"""Progress of jobs and the time of their next end.

A job makes `rate` steps per second from `since` on. Columns of ended jobs are reused, so the block is as wide as the
number of concurrent jobs.
"""

from __future__ import annotations

import math

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels import sim_progress
from levada.kernels.sim_progress import END, RATE, TOTAL

_FIRST_SIZE = 64
_NO_JOBS: Ints = np.zeros(0, np.int64)
#: An unused column: a job with infinite work that makes no progress.
_BLANK: Floats = np.zeros(5)
_BLANK[[TOTAL, END]] = math.inf


class JobProgress:
    """Progress of active jobs, by number."""

    def __init__(self) -> None:
        self._column: Ints = np.full(_FIRST_SIZE, -1, np.int64)
        self._number: Ints = np.zeros(0, np.int64)
        self._jobs: Floats = np.zeros((5, 0))
        self._free: list[int] = []
        #: Time of the next end; nan: not computed yet.
        self._next = math.inf

    def add(self, numbers: Ints, total: Floats) -> None:
        """Add jobs with *total* steps each; nan if unknown."""
        while len(self._free) < len(numbers):
            self._widen()
        # Nearly always a single job.
        for number, steps in zip(numbers.tolist(), total.tolist(), strict=True):
            if number >= len(self._column):
                more = max(number + 1, 2 * len(self._column)) - len(self._column)
                self._column = np.append(self._column, np.full(more, -1, np.int64))
            column = self._free.pop()
            self._column[number], self._number[column] = column, number
            self._jobs[TOTAL, column] = math.inf if math.isnan(steps) else steps

    def remove(self, numbers: Ints) -> None:
        """Remove jobs that ended."""
        end = math.inf
        for number, column in zip(numbers.tolist(), self._column.take(numbers).tolist(), strict=True):
            end = min(end, self._jobs.item(END, column))
            self._jobs[:, column] = _BLANK
            self._column[number] = -1
            self._free.append(column)
        self._update_next(end)

    def rates(self, numbers: Ints) -> Floats:
        """Return steps per second of these jobs, 0 while they pause."""
        return self._jobs[RATE].take(self._column.take(numbers))

    def steps(self, numbers: Ints, now: float) -> Floats:
        """Return the steps that these jobs have made."""
        return sim_progress.steps(self._jobs, self._column.take(numbers), now)

    def pause(self, numbers: Ints, now: float) -> None:
        """Pause these jobs."""
        self._update_next(sim_progress.pause(self._jobs, self._column.take(numbers), now))

    def run(self, numbers: Ints, now: float, rate: Floats, since: Floats) -> None:
        """Pause these jobs now, and let them make *rate* steps per second from *since*."""
        self._update_next(*sim_progress.set_rates(self._jobs, self._column.take(numbers), now, rate, since))

    def next_end(self) -> float:
        """Return the time of the next end; infinite if there is none."""
        if self._next != self._next:
            ends = self._jobs[END]
            self._next = float(ends[ends.argmin()]) if len(ends) else math.inf
        return self._next

    def ended(self, now: float) -> Ints:
        """Return the numbers of the jobs that are done by *now*, sorted, each once."""
        if self.next_end() > now:
            return _NO_JOBS
        numbers = self._number.take(sim_progress.finish(self._jobs, now))
        self._next = math.nan
        return np.sort(numbers) if len(numbers) > 1 else numbers

    def _update_next(self, end: float, instead: float = math.inf) -> None:
        """Some jobs changed whose first end was *end*; their new first end is *instead*."""
        # The minimum over all jobs is needed only if the next end was among the changed ones.
        self._next = math.nan if end <= self._next < math.inf else min(self._next, instead)

    def _widen(self) -> None:
        size = self._jobs.shape[1]
        more = max(size, _FIRST_SIZE)
        self._jobs = np.concatenate([self._jobs, np.repeat(_BLANK[:, None], more, axis=1)], axis=1)
        self._number = np.append(self._number, np.full(more, -1, np.int64))
        self._free += range(size + more - 1, size - 1, -1)
