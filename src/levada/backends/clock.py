"""The engine's time: unix time at the start, then whatever the machine's own clock adds; it never goes back."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> float:
        """Seconds; never less than before."""
        ...


class MachineClock:
    """Starts at the wall clock, or at *last* where that is behind, and from then on counts seconds.

    Somebody who sets the wall clock changes nothing; a machine that slept has aged.
    """

    def __init__(self, last: float = 0.0) -> None:
        self._start = max(time.time(), last)
        self._counted = _seconds()

    def now(self) -> float:
        """Seconds; never less than before."""
        return self._start + (_seconds() - self._counted)


def _seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
