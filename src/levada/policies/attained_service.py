"""Tiresias's queues: the attained service of each job and the queue it is in.

Attained service is GPU-seconds over all runs since the last promotion. A job that reaches a queue's limit moves to the
queue below. A job that waits, has run before, and has waited *knob* times as long as it has run, is promoted: it moves
to the tail of the first queue, and its service, running and waiting times restart from 0.

The state is keyed by job number. The engine keeps the counters; the state holds their values at the last promotion.
"""

from __future__ import annotations

import math
from typing import TypeVar

import msgspec
import numpy as np

from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.core.types import WHOLE, Floats, Ints
from levada.kernels import tiresias
from levada.tables.snapshot import Snapshot

#: Column indices for the kernels.
_WHOLE = np.array([INT_COLUMNS.index(name) for name in tiresias.WHOLE_COLUMNS])
_REAL = np.array([FLOAT_COLUMNS.index(name) for name in tiresias.REAL_COLUMNS])

Column = TypeVar("Column", Ints, Floats)


class Attained(msgspec.Struct, frozen=True, kw_only=True):
    """Columns by job, ascending in `number`."""

    number: Ints
    queue: Ints
    #: When it was last promoted; -inf = never.
    promoted: Floats
    #: The job's counters at that time.
    gpu_seconds: Floats
    running_s: Floats
    waiting_s: Floats


class QueuePositions(msgspec.Struct, frozen=True, kw_only=True):
    """Queue and counters of each job in a snapshot, by row, since its last promotion."""

    queue: Ints
    promoted: Floats
    service: Floats
    running_s: Floats
    waiting_s: Floats


NO_JOBS = Attained(
    number=np.zeros(0, np.int64),
    queue=np.zeros(0, np.int64),
    promoted=np.zeros(0),
    gpu_seconds=np.zeros(0),
    running_s=np.zeros(0),
    waiting_s=np.zeros(0),
)


def state_in_queues(snap: Snapshot, queue: Ints) -> Attained:
    """The state with the jobs of *snap* in the given queues, and no move due."""
    gpu_seconds, running_s, waiting_s = _counters(snap)
    by_number = snap.jobs.number.argsort()
    return Attained(
        number=snap.jobs.number[by_number],
        queue=np.asarray(queue, np.int64)[by_number],
        promoted=np.full(len(snap), -math.inf),
        gpu_seconds=gpu_seconds[by_number],
        running_s=running_s[by_number],
        waiting_s=waiting_s[by_number],
    )


def advance(state: Attained, snap: Snapshot, limits: Floats, knob: float) -> tuple[QueuePositions, Attained]:
    """Apply all queue moves that are due; the positions and the new state."""
    table, slots = snap.table, snap.jobs.slots
    state, at = _synced(state, snap)
    queue, counters, moved = tiresias.update_queues(
        table.ints,
        table.floats,
        slots,
        _WHOLE,
        _REAL,
        snap.now,
        at,
        state.queue,
        state.promoted,
        state.gpu_seconds,
        state.running_s,
        state.waiting_s,
        limits,
        knob,
    )
    positions = QueuePositions(
        queue=queue,
        promoted=counters[tiresias.PROMOTED],
        service=counters[tiresias.SERVICE],
        running_s=counters[tiresias.RAN],
        waiting_s=counters[tiresias.WAITED],
    )
    return positions, _moved(state, at, queue, counters) if moved else state


def queue_order(snap: Snapshot, positions: QueuePositions) -> Ints:
    """Rows by queue, then first start (never started: last), then submission.

    A promoted job counts as submitted at its promotion and not started since.
    """
    table, slots = snap.table, snap.jobs.slots
    return tiresias.queue_order(
        table.ints, table.floats, slots, _WHOLE, _REAL, positions.queue, positions.promoted, positions.running_s
    )


def next_queue_move(snap: Snapshot, positions: QueuePositions, count: Ints, limits: Floats, knob: float) -> float:
    """When time alone next moves a job of *count* workers to another queue, or inf."""
    soonest = tiresias.next_move_s(
        snap.table.ints,
        snap.jobs.slots,
        _WHOLE,
        count,
        positions.queue,
        positions.service,
        positions.running_s,
        positions.waiting_s,
        limits,
        knob,
    )
    # Rounding could give a time that is not after now, and the policy would be called in a loop.
    return max(snap.now + soonest, math.nextafter(snap.now, math.inf))


def _counters(snap: Snapshot) -> tuple[Floats, Floats, Floats]:
    """GPU-seconds, running and waiting seconds of each job until now."""
    jobs = snap.jobs
    since = np.maximum(snap.now - jobs.since, 0.0)
    runs = jobs.observed > 0
    gpus = jobs.observed * (jobs.milli / WHOLE)
    return jobs.gpu_seconds + since * gpus, jobs.running_s + since * runs, jobs.waiting_s + since * ~runs


def _synced(state: Attained, snap: Snapshot) -> tuple[Attained, Ints]:
    """Add new jobs to the state, remove ended ones; the index of each job in view."""
    table, slots = snap.table, snap.jobs.slots
    active, _ = table.index
    at, up_to_date = tiresias.locate(table.ints, slots, _WHOLE, state.number, active)
    if up_to_date:
        return state, at
    active_rows = table.find(state.number) >= 0
    fresh = table.number.take(slots[at < 0])
    number = np.concatenate([state.number[active_rows], fresh])
    by_number = number.argsort()

    def column(old: Column, new: float) -> Column:
        return np.concatenate([old[active_rows], np.full(len(fresh), new, old.dtype)])[by_number]

    state = Attained(
        number=number[by_number],
        queue=column(state.queue, 0),
        promoted=column(state.promoted, -math.inf),
        gpu_seconds=column(state.gpu_seconds, 0.0),
        running_s=column(state.running_s, 0.0),
        waiting_s=column(state.waiting_s, 0.0),
    )
    return state, tiresias.locate(table.ints, slots, _WHOLE, state.number, active)[0]


def _moved(state: Attained, at: Ints, queue: Ints, counters: Floats) -> Attained:
    """The state after the moves; jobs out of view are unchanged."""
    promoted = (counters[tiresias.PROMOTED] != state.promoted[at]).nonzero()[0]

    def column(old: Floats, new: Floats) -> Floats:
        changed = old.copy()
        changed[at[promoted]] = new[promoted]
        return changed

    queues = state.queue.copy()
    queues[at] = queue
    return Attained(
        number=state.number,
        queue=queues,
        promoted=column(state.promoted, counters[tiresias.PROMOTED]),
        gpu_seconds=column(state.gpu_seconds, counters[tiresias.GPU_SECONDS]),
        running_s=column(state.running_s, counters[tiresias.RUNNING_S]),
        waiting_s=column(state.waiting_s, counters[tiresias.WAITING_S]),
    )
