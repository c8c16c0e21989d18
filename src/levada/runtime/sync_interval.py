"""Sync interval: after how many steps members agree on what to do next.

A sync costs a round trip, so members agree on a number of steps that takes about 0.2 s. Each proposes one, and the
smallest counts.
"""

from __future__ import annotations

import time

#: Target time between two syncs.
_EVERY_S = 0.2
#: Longest interval, since steps may become slower before the next sync.
_MAX_STEPS = 100


class SyncInterval:
    """The next sync is after step `due`."""

    def __init__(self) -> None:
        self.due: float = 0
        self._stride = 1
        self._last = (0, 0.0)

    def restart(self, step: int) -> None:
        """Start over after the members changed: sync after one step, then at growing intervals."""
        self.agreed(step, 1)

    def proposal(self, step: int, end: float) -> float:
        """The number of steps that this member proposes until the next sync, which must not be after step *end*."""
        last_step, since = self._last
        elapsed = time.monotonic() - since
        fits = _EVERY_S * max(1, step - last_step) / max(elapsed, 1e-6)
        return max(1.0, min(fits, 2 * self._stride, _MAX_STEPS, end - step))

    def agreed(self, step: int, stride: float) -> None:
        """Apply the *stride* that all members have agreed on."""
        self._stride = max(1, round(stride))
        self._last = (step, time.monotonic())
        self.due = step + self._stride
