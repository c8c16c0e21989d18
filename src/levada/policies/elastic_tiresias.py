"""Tiresias, with jobs that shrink when many wait and grow where that gains most.

Source: Wu et al., "Elastic Deep Learning in Multi-Tenant GPU Clusters", TPDS 2021, as VodaScheduler 0.2.2 has it
(`ElasticTiresias`). First as `tiresias`. If more than *compaction_threshold* jobs of a type then wait, admitted jobs
outside the first queue shrink to their minimum. Then what is free goes, grant by grant, to the job with the largest
gain per GPU, while that is above 0: for a job that waits speed-up(min) / min at its minimum, for one that runs the
speed-up that one more step adds. Equal gains: waiting jobs first, then by queue, then by submission.

Needs speed-up curves. Deviations from Voda: waiting jobs win ties (with linear curves compaction would be undone at
once), an admitted job may grow whatever its minimum, nobody is pushed beyond the maximum. From the paper: as Voda,
jobs shrink to their minimum, not by efficiency down to half of what they asked for.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from levada.core.decision import Decision
from levada.core.reasons import Code
from levada.core.types import Ints
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types
from levada.policies.attained import NOBODY, Attained, advance, in_order, next_move
from levada.policies.fill import give
from levada.policies.gain import grow_by_gain
from levada.policies.options import number_above, whole_number
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.relocate import settled
from levada.policies.sizes import asked, largest, smallest
from levada.policies.verdict import verdict, where_it_fits
from levada.tables.snapshot import Snapshot


class ElasticTiresias:
    """Jobs by attained service, shrunk for those that wait and grown by gain."""

    name: ClassVar[str] = "elastic-tiresias"
    needs: ClassVar[Needs] = Needs.RATE
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS
    elastic: ClassVar[bool] = True

    def __init__(
        self, *, queue_limit: float = 3600.0, promote_knob: float = 8.0, compaction_threshold: int = 10
    ) -> None:
        self._limits = np.array([number_above("queue_limit", queue_limit, 0)])
        self._knob = number_above("promote_knob", promote_knob, 0)
        self._threshold = whole_number("compaction_threshold", compaction_threshold, 0)

    def initial(self, seed: int) -> Attained:
        """All jobs are new to it."""
        return NOBODY

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: Attained) -> tuple[Decision, Attained]:
        """Tiresias's admission, then compaction, then growth."""
        standing, state = advance(state, snap, self._limits, self._knob)
        order, size = in_order(snap, standing), asked(snap)
        types = assign_types(snap, order, size, largest(snap), perf=perf)
        tie_order = standing.queue.argsort(kind="stable")

        def by_gain(types: Ints) -> Ints:
            count = self._compacted(snap, types, give(snap, order, types, size), standing.queue)
            return grow_by_gain(snap, perf, tie_order, types, count)

        types, count = settled(snap, perf, order, types, by_gain)
        # Growth ends with room for a job that waits only where it would gain nothing by it.
        reason = where_it_fits(snap, types, count, Code.NO_GAIN)
        wake_at = next_move(snap, standing, count, self._limits, self._knob)
        return verdict(snap, order, types, count, reason, wake_at=wake_at), state

    def _compacted(self, snap: Snapshot, types: Ints, count: Ints, queue: Ints) -> Ints:
        """Sizes after jobs outside the first queue shrank, on the types where many wait."""
        waiting = types[(count == 0) & (types >= 0)]
        crowded = np.bincount(waiting, minlength=len(snap.capacity)) > self._threshold
        if not np.count_nonzero(crowded):
            return count
        return np.where((count > 0) & (queue > 0) & crowded[types], smallest(snap), count)
