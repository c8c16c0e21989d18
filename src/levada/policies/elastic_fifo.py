"""First in, first out, and what is left goes round in turns.

Source: VodaScheduler 0.2.2 (`ElasticFIFO`, its default). First as `fifo`. Then passes over the admitted jobs in the
same order: one step to each that is below its maximum, until nothing fits or all have their maximum. Odd GPUs go to the
oldest. Speed is not looked at.

Needs nothing but the jobs. Deviation: a job that did not get its minimum gets nothing in the passes (Voda hands it
single GPUs below its minimum, and its own check then stops all scheduling).
"""

from __future__ import annotations

from typing import ClassVar

from levada.core.decision import Decision
from levada.core.types import Ints
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types
from levada.policies.fill import give, grow_in_turns
from levada.policies.importance import by_importance
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.relocate import mixed, settled
from levada.policies.sizes import largest, smallest
from levada.policies.verdict import served, verdict
from levada.tables.snapshot import Snapshot


class ElasticFifo:
    """Jobs by priority and in order of submission, grown in turns."""

    name: ClassVar[str] = "elastic-fifo"
    needs: ClassVar[Needs] = Needs.NOTHING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS
    elastic: ClassVar[bool] = True

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
        """Minimums in order, then growth in turns."""
        order, least = by_importance(snap), smallest(snap)
        if not mixed(snap):
            return served(snap, order, least, grow=True), None
        types = assign_types(snap, order, least, largest(snap))

        def in_turns(types: Ints) -> Ints:
            return grow_in_turns(snap, order, types, give(snap, order, types, least))

        types, count = settled(snap, perf, order, types, in_turns)
        return verdict(snap, order, types, count), None
