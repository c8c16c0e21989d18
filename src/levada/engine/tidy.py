"""What moving a running job costs and what it is worth, for defragmentation.

A decision that is replayed from a log must lead to the same places. How far jobs are, and what is believed of their
speed, is in no log: so neither counts here.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.plane import Plane
from levada.core.types import WHOLE, Floats, Ints
from levada.engine.state import State
from levada.placement.defragment import Waiting, defragment


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """Assumptions, on the careful side."""

    #: Part of its speed that a job is taken to win on one node (or rack, or zone) fewer.
    split_loss: float = 0.1
    #: A job is taken to run on for as long as it has run. Nobody knows what the cluster looks like later than that.
    horizon_s: float = 3600.0
    #: How long training stands still for a resize, and for a stop and a start.
    resize_s: float = 30.0
    restart_s: float = 40.0


TUNING = Tuning()


def tidy(state: State, plane: Plane, slots: Ints, gpu_type: Ints, asked: Ints, reached: Ints) -> Plane | None:
    """A better plane than *plane*, within the budget of moves, or None.

    Only the jobs in *slots*, which a decision was about, may move; of them *asked* and *reached* are the sizes. Values
    are in GPU-seconds.
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
    waiting = Waiting(
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


def workers_on(state: State, plane: Plane, slots: Ints) -> Ints:
    """Workers with whole GPUs that each of these jobs has on *plane*."""
    table = state.world.table
    devices = np.bincount(plane.owner[plane.owner >= 0], minlength=table.capacity)[slots]
    return np.asarray(devices // np.maximum(table.milli[slots] // WHOLE, 1))


def _horizon_s(state: State, slots: Ints) -> Floats:
    """Per slot how long a better place would be enjoyed."""
    table = state.world.table
    horizon = np.full(table.capacity, TUNING.horizon_s)
    runs = slots[table.held[slots] > 0]
    horizon[runs] = np.clip(state.now - table.started[runs], 0.0, TUNING.horizon_s)
    return horizon
