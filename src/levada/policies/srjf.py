"""Shortest remaining job first, each job at its minimum.

Source: VodaScheduler 0.2.2 (`SRJF`). Each job, by remaining serial seconds on its GPU type, gets its minimum if that
fits, else nothing. A shorter new job displaces a longer running one.

Needs the remaining work and the speed. Deviations: a job of unknown length comes last, not first; ties go by
submission. With several types, the length of a job on its current or preferred type decides where it competes, and the
length on that type then gives the order; a job without preference takes its fastest type with room.
"""

from __future__ import annotations

from typing import ClassVar

from levada.core.decision import Decision
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types, home_types
from levada.policies.build_decision import build_decision, unknown_length_reasons
from levada.policies.fill import fill_in_order
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.remaining_time import remaining, shortest_first, update_remaining
from levada.policies.sizes import smallest
from levada.tables.snapshot import Snapshot


class Srjf:
    """Jobs by remaining time, at their minimum."""

    name: ClassVar[str] = "srjf"
    needs: ClassVar[Needs] = Needs.REMAINING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS

    def initial(self, seed: int) -> None:
        """Stateless."""

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
        """The minimum for each job, shortest first, that still fits."""
        least = smallest(snap)
        homes = home_types(snap, perf)
        at_home = remaining(snap, perf, homes)
        types = assign_types(snap, shortest_first(at_home), least, perf=perf)
        left = update_remaining(snap, perf, types, homes, at_home)
        order = shortest_first(left)
        count = fill_in_order(snap, order, types, least)
        return build_decision(snap, order, types, count, unknown_length_reasons(snap, types, count, left)), None
