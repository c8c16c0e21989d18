"""Cost and gain of moving running jobs, for defragmentation.

A replayed decision must give the same placements, and neither progress nor learned speeds are in the log. So neither is
used here.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.assignment import Assignment
from levada.core.types import WHOLE, Floats, Ints
from levada.engine.state import State
from levada.placement.defragment import FragmentedJobs, defragment


class MoveTuning(msgspec.Struct, frozen=True, kw_only=True):
    """Conservative assumptions."""

    #: Fraction of its speed that a job gains on one node (or rack, or zone) fewer.
    split_loss: float = 0.1
    #: A job is expected to run for as long as it has run, at most this long.
    horizon_s: float = 3600.0
    #: Time without progress for a resize, and for a stop and a start.
    resize_s: float = 30.0
    restart_s: float = 40.0


TUNING = MoveTuning()


def defragment_targets(
    state: State, plane: Assignment, slots: Ints, gpu_type: Ints, asked: Ints, reached: Ints
) -> Assignment | None:
    """A less fragmented assignment than *plane* within the budget of moves, or None.

    Only the jobs in *slots*, those of the decision, may move; *asked* and *reached* are their wanted and placed sizes.
    Gains and costs are in GPU-seconds.
    """
    table = state.world.table
    frozen = np.ones(table.capacity, bool)
    frozen[slots] = False
    frozen |= state.protected() | (table.issued > 0)
    gpus = table.milli / WHOLE
    horizon = _horizon_s(state, slots)
    gain = TUNING.split_loss * np.maximum(table.count, 1) * gpus * horizon
    cost = table.held * gpus * np.where(table.resizes_in_place > 0, TUNING.resize_s, TUNING.restart_s)
    short = ((asked > 0) & (reached == 0)).nonzero()[0]
    chosen = slots[short]
    waiting = FragmentedJobs(
        slots=chosen,
        gpu_type=gpu_type[short],
        count=asked[short],
        worth=asked[short] * gpus[chosen] * horizon[chosen],
    )
    return defragment(
        state.world,
        plane,
        budget=state.options.move_budget,
        frozen=frozen,
        cost=cost,
        gain=gain,
        waiting=waiting,
    )


def workers_on(state: State, plane: Assignment, slots: Ints) -> Ints:
    """The number of whole-GPU workers of each of these jobs on *plane*."""
    table = state.world.table
    devices = np.bincount(plane.owner[plane.owner >= 0], minlength=table.capacity)[slots]
    return np.asarray(devices // np.maximum(table.milli[slots] // WHOLE, 1))


def _horizon_s(state: State, slots: Ints) -> Floats:
    """How long a job will benefit from a better placement, per slot."""
    table = state.world.table
    horizon = np.full(table.capacity, TUNING.horizon_s)
    running = slots[table.held[slots] > 0]
    horizon[running] = np.clip(state.now - table.started[running], 0.0, TUNING.horizon_s)
    return horizon
