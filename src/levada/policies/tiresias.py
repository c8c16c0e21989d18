"""Least attained service in discrete queues, each job at the size it asked for.

Source: Gu et al., "Tiresias", NSDI 2019 (discretised 2D-LAS). The first queue holds jobs below *queue_limit*
GPU-seconds, the second the rest; `attained` has the rules of demotion and promotion. For each job by queue, in it by
first start: what it asked for if that fits, else nothing.

Needs nothing but the jobs and the engine's accounts; decisions move with time, so it asks to be woken. Deviations: no
placement rule by model skew (placement is the placer's), no Gittins index; the size asked for is taken down to the
nearest allowed one. From Voda's version it differs in counting service over all runs, and in promoting as the paper
does.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from levada.core.decision import Decision
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types
from levada.policies.attained import NOBODY, Attained, advance, in_order, next_move
from levada.policies.fill import give
from levada.policies.options import number_above
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.sizes import asked
from levada.policies.verdict import verdict
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
        """All jobs are new to it."""
        return NOBODY

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: Attained) -> tuple[Decision, Attained]:
        """What it asked for to each job in order that still fits."""
        standing, state = advance(state, snap, self._limits, self._knob)
        order, size = in_order(snap, standing), asked(snap)
        types = assign_types(snap, order, size)
        count = give(snap, order, types, size)
        wake_at = next_move(snap, standing, count, self._limits, self._knob)
        return verdict(snap, order, types, count, wake_at=wake_at), state
