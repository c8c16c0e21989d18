"""Monotonic clock of the engine that starts at unix time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic source of time."""

    def now(self) -> float:
        """Seconds; never less than before."""
        ...


class MachineClock:
    """Starts at the wall clock, or at *last* if that is later, and then counts seconds.

    Changes of the wall clock have no effect; time in which the machine is suspended counts.
    """

    def __init__(self, last: float = 0.0) -> None:
        self._start = max(time.time(), last)
        self._boot_start = _seconds()

    def now(self) -> float:
        """Seconds; never less than before."""
        return self._start + (_seconds() - self._boot_start)


def _seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
