"""How far every job is and when it will be done.

A job makes `rate` steps per second from `since` on. Jobs that are over leave their column to others, so that the block
is as wide as the jobs that are there at once.
"""

from __future__ import annotations

import math

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels import drive
from levada.kernels.drive import END, RATE, TOTAL

_FIRST_SIZE = 64
_NOBODY: Ints = np.zeros(0, np.int64)
#: The column of nobody is as that of a job that has infinitely much to do and does nothing.
_BLANK: Floats = np.zeros(5)
_BLANK[[TOTAL, END]] = math.inf


class Pace:
    """Progress of the jobs that are there, by number."""

    def __init__(self) -> None:
        self._column: Ints = np.full(_FIRST_SIZE, -1, np.int64)
        self._number: Ints = np.zeros(0, np.int64)
        self._jobs: Floats = np.zeros((5, 0))
        self._free: list[int] = []
        #: When the next job is done; nan: to be looked up.
        self._next = math.inf

    def add(self, numbers: Ints, total: Floats) -> None:
        """New jobs with so many steps; nan where nobody knows."""
        while len(self._free) < len(numbers):
            self._widen()
        # Nearly always there is one.
        for number, steps in zip(numbers.tolist(), total.tolist(), strict=True):
            if number >= len(self._column):
                more = max(number + 1, 2 * len(self._column)) - len(self._column)
                self._column = np.append(self._column, np.full(more, -1, np.int64))
            column = self._free.pop()
            self._column[number], self._number[column] = column, number
            self._jobs[TOTAL, column] = math.inf if math.isnan(steps) else steps

    def forget(self, numbers: Ints) -> None:
        """These jobs are over."""
        end = math.inf
        for number, column in zip(numbers.tolist(), self._column.take(numbers).tolist(), strict=True):
            end = min(end, self._jobs.item(END, column))
            self._jobs[:, column] = _BLANK
            self._column[number] = -1
            self._free.append(column)
        self._put_off(end)

    def rates(self, numbers: Ints) -> Floats:
        """Steps per second of these jobs, 0 while they pause."""
        return self._jobs[RATE].take(self._column.take(numbers))

    def steps(self, numbers: Ints, now: float) -> Floats:
        """How far these jobs are."""
        return drive.steps(self._jobs, self._column.take(numbers), now)

    def pause(self, numbers: Ints, now: float) -> None:
        """These jobs make no progress from now on."""
        self._put_off(drive.pause(self._jobs, self._column.take(numbers), now))

    def go(self, numbers: Ints, now: float, rate: Floats, since: Floats) -> None:
        """These jobs pause now, if they do not, and make so many steps per second from then on."""
        self._put_off(*drive.go(self._jobs, self._column.take(numbers), now, rate, since))

    def next_end(self) -> float:
        """When the next job is done; infinite if none will be."""
        if self._next != self._next:
            ends = self._jobs[END]
            self._next = float(ends[ends.argmin()]) if len(ends) else math.inf
        return self._next

    def ended(self, now: float) -> Ints:
        """The jobs that are done by now, each once, by number."""
        if self.next_end() > now:
            return _NOBODY
        numbers = self._number.take(drive.finish(self._jobs, now))
        self._next = math.nan
        return np.sort(numbers) if len(numbers) > 1 else numbers

    def _put_off(self, end: float, instead: float = math.inf) -> None:
        """The first of some jobs would have been done at *end*, and now will be at another time."""
        # Only where they were the next does it take a look at all others to tell who is.
        self._next = math.nan if end <= self._next < math.inf else min(self._next, instead)

    def _widen(self) -> None:
        size = self._jobs.shape[1]
        more = max(size, _FIRST_SIZE)
        self._jobs = np.concatenate([self._jobs, np.repeat(_BLANK[:, None], more, axis=1)], axis=1)
        self._number = np.append(self._number, np.full(more, -1, np.int64))
        self._free += range(size + more - 1, size - 1, -1)
