"""Least attained service in discrete queues, each job at its requested size.

Source: Gu et al., "Tiresias", NSDI 2019 (discretised 2D-LAS). The first queue has the jobs below *queue_limit*
GPU-seconds, the second the others; `attained_service` has the rules for demotion and promotion. Each job, by queue and
then by first start, gets its requested size if that fits, else nothing.

Needs no information beyond the jobs and the engine's counters. The order changes with time, so the policy sets a wake
time. Deviations: no placement rule by model skew (the placer places), no Gittins index; requested sizes are rounded
down to allowed ones. Unlike Voda's version, it counts service over all runs and promotes as in the paper.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from levada.core.decision import Decision
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types
from levada.policies.attained_service import NO_JOBS, Attained, advance, next_queue_move, queue_order
from levada.policies.build_decision import build_decision
from levada.policies.fill import fill_in_order
from levada.policies.options import number_above
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.sizes import asked
from levada.tables.snapshot import Snapshot


class Tiresias:
    """Jobs by attained service, at the size they asked for."""

    name: ClassVar[str] = "tiresias"
    needs: ClassVar[Needs] = Needs.NOTHING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS

    def __init__(self, *, queue_limit: float = 3600.0, promote_knob: float = 8.0) -> None:
        self._limits = np.array([number_above("queue_limit", queue_limit, 0)])
        self._knob = number_above("promote_knob", promote_knob, 0)

    def initial(self, seed: int) -> Attained:
        """No jobs are known yet."""
        return NO_JOBS

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: Attained) -> tuple[Decision, Attained]:
        """The requested size for each job in order that still fits."""
        positions, state = advance(state, snap, self._limits, self._knob)
        order, size = queue_order(snap, positions), asked(snap)
        types = assign_types(snap, order, size)
        count = fill_in_order(snap, order, types, size)
        wake_at = next_queue_move(snap, positions, count, self._limits, self._knob)
        return build_decision(snap, order, types, count, wake_at=wake_at), state
