"""Shortest remaining job first; spare GPUs are handed out in turns.

Source: VodaScheduler 0.2.2 (`ElasticSRJF`). Starts like `srjf`. Then passes over the admitted jobs, shortest first: one
step to each job below its maximum, until nothing fits or all have their maximum.

Needs the remaining work and the speed. Deviations: as `srjf`; a job without its minimum gets nothing in the passes, and
a job does not exceed its maximum. Voda does both; its own check then stops all scheduling.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from levada.core.decision import Decision
from levada.core.types import Ints
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types, home_types
from levada.policies.build_decision import build_decision, unknown_length_reasons
from levada.policies.fill import fill_in_order, grow_in_turns
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.relocate import move_to_idle_types
from levada.policies.remaining_time import remaining, shortest_first, update_remaining
from levada.policies.sizes import largest, smallest
from levada.tables.snapshot import Snapshot


class ElasticSrjf:
    """Jobs by remaining time, grown in turns."""

    name: ClassVar[str] = "elastic-srjf"
    needs: ClassVar[Needs] = Needs.REMAINING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS
    elastic: ClassVar[bool] = True

    def initial(self, seed: int) -> None:
        """Stateless."""

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
        """Minimums and then growth in turns, shortest first."""
        least = smallest(snap)
        homes = home_types(snap, perf)
        at_home = remaining(snap, perf, homes)
        types = assign_types(snap, shortest_first(at_home), least, largest(snap), perf=perf)
        left = update_remaining(snap, perf, types, homes, at_home)
        order = shortest_first(left)

        def in_turns(types: Ints) -> Ints:
            return grow_in_turns(snap, order, types, fill_in_order(snap, order, types, least))

        types, count = move_to_idle_types(snap, perf, order, types, in_turns)
        reason = unknown_length_reasons(snap, types, np.where(count > 0, least, 0), left)
        return build_decision(snap, order, types, count, reason), None
