"""First in, first out; spare GPUs are handed out in turns.

Source: VodaScheduler 0.2.2 (`ElasticFIFO`, its default). Starts like `fifo`. Then passes over the admitted jobs in the
same order: one step to each job below its maximum, until nothing fits or all have their maximum. Odd GPUs go to the
oldest jobs. Speed does not matter.

Needs no information beyond the jobs. Deviation: a job without its minimum gets nothing in the passes. Voda hands it
single GPUs below its minimum; its own check then stops all scheduling.
"""

from __future__ import annotations

from typing import ClassVar

from levada.core.decision import Decision
from levada.core.types import Ints
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types
from levada.policies.build_decision import build_decision, decide_in_order
from levada.policies.fill import fill_in_order, grow_in_turns
from levada.policies.ordering import by_importance
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.relocate import has_several_types, move_to_idle_types
from levada.policies.sizes import largest, smallest
from levada.tables.snapshot import Snapshot


class ElasticFifo:
    """Jobs by priority and in order of submission, grown in turns."""

    name: ClassVar[str] = "elastic-fifo"
    needs: ClassVar[Needs] = Needs.NOTHING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS
    elastic: ClassVar[bool] = True

    def initial(self, seed: int) -> None:
        """Stateless."""

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
        """Minimums in order, then growth in turns."""
        order, least = by_importance(snap), smallest(snap)
        if not has_several_types(snap):
            return decide_in_order(snap, order, least, grow=True), None
        types = assign_types(snap, order, least, largest(snap))

        def in_turns(types: Ints) -> Ints:
            return grow_in_turns(snap, order, types, fill_in_order(snap, order, types, least))

        types, count = move_to_idle_types(snap, perf, order, types, in_turns)
        return build_decision(snap, order, types, count), None
