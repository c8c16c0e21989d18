"""First in, first out, each job at its minimum.

Source: VodaScheduler 0.2.2 (`FIFO`). For each job in order of submission: its minimum if that fits, else nothing; the
next one is asked all the same, so small jobs pass a wide one that waits.

Needs nothing but the jobs. Deviation: jobs of a higher priority come first (Voda does not look at it here); on several
types, see `assign`.
"""

from __future__ import annotations

from typing import ClassVar

from levada.core.decision import Decision
from levada.perf.model import ThroughputModel
from levada.policies.importance import by_importance
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.sizes import smallest
from levada.policies.verdict import served
from levada.tables.snapshot import Snapshot


class Fifo:
    """Jobs by priority and in order of submission, at their minimum."""

    name: ClassVar[str] = "fifo"
    needs: ClassVar[Needs] = Needs.NOTHING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
        """The minimum to each job in order that still fits."""
        return served(snap, by_importance(snap), smallest(snap)), None
