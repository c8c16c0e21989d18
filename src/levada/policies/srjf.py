"""Shortest remaining job first, each job at its minimum.

Source: VodaScheduler 0.2.2 (`SRJF`). For each job by serial seconds left on its GPU type: its minimum if that fits,
else nothing. A shorter newcomer displaces a longer job that runs.

Needs the work that is left and the speed. Deviations: a job of which nothing is known comes last, not first; equal
lengths go by submission. On several types a job's length is first taken on its present or preferred type, to decide
where it competes, and then on that one; without a preference of its own that is the fastest one with room.
"""

from __future__ import annotations

from typing import ClassVar

from levada.core.decision import Decision
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types, home_types
from levada.policies.fill import give
from levada.policies.length import remaining, remaining_again, shortest_first
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.sizes import smallest
from levada.policies.verdict import because_unknown, verdict
from levada.tables.snapshot import Snapshot


class Srjf:
    """Jobs by time left, at their minimum."""

    name: ClassVar[str] = "srjf"
    needs: ClassVar[Needs] = Needs.REMAINING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
        """The minimum to each job, shortest first, that still fits."""
        least = smallest(snap)
        homes = home_types(snap, perf)
        at_home = remaining(snap, perf, homes)
        types = assign_types(snap, shortest_first(at_home), least, perf=perf)
        left = remaining_again(snap, perf, types, homes, at_home)
        order = shortest_first(left)
        count = give(snap, order, types, least)
        return verdict(snap, order, types, count, because_unknown(snap, types, count, left)), None
