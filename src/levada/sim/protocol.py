"""Interface of simulated clusters, as `sim.run` uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from levada.sim.arrivals import Arrivals
from levada.sim.completed import CompletedJobs
from levada.sim.metrics import Facts


class SimulatedCluster(Protocol):
    """Jobs arrive, run and end in simulated time."""

    now: float
    arrivals: Arrivals
    ended: CompletedJobs
    #: Called with one line of JSON when a round begins; not part of a checkpoint.
    on_round: Callable[[bytes], None] | None

    @property
    def rounds(self) -> int:
        """Rounds that have begun."""

    @property
    def rejection(self) -> str | None:
        """Why the engine rejected the last decision of the policy; None if it did not."""

    def run(self, *, done: Callable[[], bool]) -> None:
        """Simulate until *done* returns True or no events are left. *done* is called before every step."""

    def facts(self) -> Facts:
        """Return the counters so far."""
