"""Tiresias with elastic jobs: shrink while many wait, grow by marginal gain.

Source: Wu et al., "Elastic Deep Learning in Multi-Tenant GPU Clusters", TPDS 2021, as in VodaScheduler 0.2.2
(`ElasticTiresias`). Starts like `tiresias`. If more than *compaction_threshold* jobs of a type then wait, admitted jobs
outside the first queue shrink to their minimum. Then free GPUs go, grant by grant, to the job with the largest gain per
GPU while that is above 0. The gain of a pending job is speedup(min) / min, that of a running job the speed-up that one
more step adds. Ties: pending jobs first, then by queue, then by submission.

Needs speed-up curves. Deviations from Voda: pending jobs win ties (with linear curves, compaction would be undone at
once), an admitted job may grow regardless of its minimum, and no job exceeds its maximum. Deviation from the paper, as
in Voda: jobs shrink to their minimum, not by efficiency down to half of the requested size.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from levada.core.decision import Decision
from levada.core.reasons import Code
from levada.core.types import Ints
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types
from levada.policies.attained_service import NO_JOBS, Attained, advance, next_queue_move, queue_order
from levada.policies.build_decision import build_decision, skipped_reasons
from levada.policies.fill import fill_in_order
from levada.policies.greedy_growth import grow_by_gain
from levada.policies.options import number_above, whole_number
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.relocate import move_to_idle_types
from levada.policies.sizes import asked, largest, smallest
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
        """No jobs are known yet."""
        return NO_JOBS

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: Attained) -> tuple[Decision, Attained]:
        """Tiresias's admission, then compaction, then growth."""
        positions, state = advance(state, snap, self._limits, self._knob)
        order, size = queue_order(snap, positions), asked(snap)
        types = assign_types(snap, order, size, largest(snap), perf=perf)
        tie_order = positions.queue.argsort(kind="stable")

        def by_gain(types: Ints) -> Ints:
            count = self._compacted(snap, types, fill_in_order(snap, order, types, size), positions.queue)
            return grow_by_gain(snap, perf, tie_order, types, count)

        types, count = move_to_idle_types(snap, perf, order, types, by_gain)
        # Growth leaves room for a pending job only if the job would gain nothing.
        reason = skipped_reasons(snap, types, count, Code.NO_GAIN)
        wake_at = next_queue_move(snap, positions, count, self._limits, self._knob)
        return build_decision(snap, order, types, count, reason, wake_at=wake_at), state

    def _compacted(self, snap: Snapshot, types: Ints, count: Ints, queue: Ints) -> Ints:
        """Sizes after jobs outside the first queue shrink on types where many wait."""
        waiting = types[(count == 0) & (types >= 0)]
        crowded = np.bincount(waiting, minlength=len(snap.capacity)) > self._threshold
        if not np.count_nonzero(crowded):
            return count
        return np.where((count > 0) & (queue > 0) & crowded[types], smallest(snap), count)
