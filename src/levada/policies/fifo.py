"""First in, first out, each job at its minimum.

Source: VodaScheduler 0.2.2 (`FIFO`). Each job in order of submission gets its minimum if that fits, else nothing. Later
jobs are still considered, so small jobs overtake a wide one that waits.

Needs no information beyond the jobs. Deviation: jobs of higher priority come first (Voda ignores priorities here). For
several GPU types see `assign`.
"""

from __future__ import annotations

from typing import ClassVar

from levada.core.decision import Decision
from levada.perf.model import ThroughputModel
from levada.policies.build_decision import decide_in_order
from levada.policies.ordering import by_importance
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.sizes import smallest
from levada.tables.snapshot import Snapshot


class Fifo:
    """Jobs by priority and in order of submission, at their minimum."""

    name: ClassVar[str] = "fifo"
    needs: ClassVar[Needs] = Needs.NOTHING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS

    def initial(self, seed: int) -> None:
        """Stateless."""

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
        """The minimum for each job in order that still fits."""
        return decide_in_order(snap, by_importance(snap), smallest(snap)), None
