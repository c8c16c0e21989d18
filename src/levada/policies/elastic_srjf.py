"""Shortest remaining job first, and what is left goes round in turns.

Source: VodaScheduler 0.2.2 (`ElasticSRJF`). First as `srjf`, then passes over the admitted jobs, shortest first: one
step to each that is below its maximum, until nothing fits or all have their maximum.

Needs the work that is left and the speed. Deviations: as `srjf`; a job that did not get its minimum gets nothing in the
passes, and one at its maximum is not pushed beyond it (Voda does both, and its own check then stops all scheduling).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from levada.core.decision import Decision
from levada.core.types import Ints
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types, home_types
from levada.policies.fill import give, grow_in_turns
from levada.policies.length import remaining, remaining_again, shortest_first
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.relocate import settled
from levada.policies.sizes import largest, smallest
from levada.policies.verdict import because_unknown, verdict
from levada.tables.snapshot import Snapshot


class ElasticSrjf:
    """Jobs by time left, grown in turns."""

    name: ClassVar[str] = "elastic-srjf"
    needs: ClassVar[Needs] = Needs.REMAINING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS
    elastic: ClassVar[bool] = True

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
        """Minimums and then growth in turns, shortest first."""
        least = smallest(snap)
        homes = home_types(snap, perf)
        at_home = remaining(snap, perf, homes)
        types = assign_types(snap, shortest_first(at_home), least, largest(snap), perf=perf)
        left = remaining_again(snap, perf, types, homes, at_home)
        order = shortest_first(left)

        def in_turns(types: Ints) -> Ints:
            return grow_in_turns(snap, order, types, give(snap, order, types, least))

        types, count = settled(snap, perf, order, types, in_turns)
        reason = because_unknown(snap, types, np.where(count > 0, least, 0), left)
        return verdict(snap, order, types, count, reason), None
