"""After which steps members ask each other whether to go on.

Steps are what they have in common, and asking costs a round trip: so they agree on a number of steps that takes about
a fifth of a second. Each proposes one, and the smallest counts.
"""

from __future__ import annotations

import time

#: Seconds between two questions.
_EVERY_S = 0.2
#: Steps may become slower before the next question.
_MOST_STEPS = 100


class Rhythm:
    """When the next question is due: after the step `due`."""

    def __init__(self) -> None:
        self.due: float = 0
        self._stride = 1
        self._last = (0, 0.0)

    def restart(self, step: int) -> None:
        """Members have changed: they ask after one step, and then less and less often."""
        self.agreed(step, 1)

    def proposal(self, step: int, end: float) -> float:
        """The number of steps that this member would have until the next question, which is not to be after *end*."""
        last_step, since = self._last
        elapsed = time.monotonic() - since
        fits = _EVERY_S * max(1, step - last_step) / max(elapsed, 1e-6)
        return max(1.0, min(fits, 2 * self._stride, _MOST_STEPS, end - step))

    def agreed(self, step: int, stride: float) -> None:
        """All have agreed on *stride*."""
        self._stride = max(1, round(stride))
        self._last = (step, time.monotonic())
        self.due = step + self._stride
