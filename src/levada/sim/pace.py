"""How far every job is and when it will be done, as columns by job number.

A job makes `rate` steps per second from `since` on. A rate that changes makes what was foretold with the old one void:
each change has a version, and only the newest one counts.
"""

from __future__ import annotations

import heapq

import numpy as np

from levada.core.types import Floats, Ints

_FIRST_SIZE = 256


class Pace:
    """Progress of all jobs there ever were; 0 steps of infinitely many for one that nobody told of."""

    def __init__(self) -> None:
        self.total: Floats = np.full(_FIRST_SIZE, np.inf)
        self.done: Floats = np.zeros(_FIRST_SIZE)
        self.rate: Floats = np.zeros(_FIRST_SIZE)
        self.since: Floats = np.zeros(_FIRST_SIZE)
        self._version: Ints = np.zeros(_FIRST_SIZE, np.int64)
        self._ends: list[tuple[float, int, int]] = []

    def add(self, numbers: Ints, total: Floats) -> None:
        """New jobs with so many steps; nan where nobody knows."""
        while len(numbers) and int(numbers[-1]) >= len(self.total):
            size = len(self.total)
            self.total = np.append(self.total, np.full(size, np.inf))
            self._version = np.append(self._version, np.zeros(size, np.int64))
            self.done, self.rate, self.since = (
                np.append(a, np.zeros(size)) for a in (self.done, self.rate, self.since)
            )
        self.total[numbers] = np.where(np.isnan(total), np.inf, total)

    def steps(self, numbers: Ints, now: float) -> Floats:
        """How far these jobs are."""
        return self.done[numbers] + self.rate[numbers] * np.maximum(now - self.since[numbers], 0.0)

    def pause(self, numbers: Ints, now: float) -> None:
        """These jobs make no progress from now on."""
        self.done[numbers] = self.steps(numbers, now)
        self.rate[numbers] = 0.0
        self._version[numbers] += 1

    def go(self, numbers: Ints, rate: Floats, since: Floats) -> None:
        """These jobs, which pause, make so many steps per second from then on."""
        self.rate[numbers], self.since[numbers] = rate, since
        left = self.total[numbers] - self.done[numbers]
        ends = (rate > 0) & (left < np.inf)
        some = numbers[ends]
        at = since[ends] + left[ends] / rate[ends]
        for end in zip(at.tolist(), some.tolist(), self._version[some].tolist(), strict=True):
            heapq.heappush(self._ends, end)

    def next_end(self) -> float:
        """When the next job is done; infinite if none will be."""
        ends = self._ends
        while ends and self._version[ends[0][1]] != ends[0][2]:
            heapq.heappop(ends)
        return ends[0][0] if ends else np.inf

    def ended(self, now: float) -> list[int]:
        """The jobs that are done by now, each once, in the order in which they were."""
        numbers = []
        while self.next_end() <= now:
            number = heapq.heappop(self._ends)[1]
            self._version[number] += 1
            self.done[number], self.rate[number] = self.total[number], 0.0
            numbers.append(number)
        return numbers
