"""Tiresias's queues: how much service each job has attained, and which queue that puts it in.

Attained service is GPU-seconds over all runs since the job was last promoted. A job that reaches a queue's limit goes
down to the queue below. A job that waits, has run, and has waited *knob* times as long as it has run, is promoted: it
goes to the tail of the first queue, and its service, running and waiting count from zero again.

The state is keyed by job number. Counters themselves are the engine's; here is only what they were at the promotion.
"""

from __future__ import annotations

import math
from typing import TypeVar

import msgspec
import numpy as np

from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS
from levada.core.types import WHOLE, Floats, Ints
from levada.kernels import attained
from levada.tables.snapshot import Snapshot

#: Where the kernels find the columns that they read.
_WHOLE = np.array([INT_COLUMNS.index(name) for name in attained.WHOLE_COLUMNS])
_REAL = np.array([FLOAT_COLUMNS.index(name) for name in attained.REAL_COLUMNS])

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


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where the jobs of a snapshot stand now, row by row; times and service count since the last promotion."""

    queue: Ints
    promoted: Floats
    service: Floats
    running_s: Floats
    waiting_s: Floats


NOBODY = Attained(
    number=np.zeros(0, np.int64),
    queue=np.zeros(0, np.int64),
    promoted=np.zeros(0),
    gpu_seconds=np.zeros(0),
    running_s=np.zeros(0),
    waiting_s=np.zeros(0),
)


def placed(snap: Snapshot, queue: Ints) -> Attained:
    """A state in which the jobs of *snap* are in these queues and nothing moves them now."""
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


def advance(state: Attained, snap: Snapshot, limits: Floats, knob: float) -> tuple[Standing, Attained]:
    """Where jobs stand after all moves that are due, and the state that remembers it."""
    table, slots = snap.table, snap.jobs.slots
    state, at = _entered(state, snap)
    queue, found, moved = attained.stand(
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
    standing = Standing(
        queue=queue,
        promoted=found[attained.PROMOTED],
        service=found[attained.SERVICE],
        running_s=found[attained.RAN],
        waiting_s=found[attained.WAITED],
    )
    return standing, _remembered(state, at, queue, found) if moved else state


def in_order(snap: Snapshot, standing: Standing) -> Ints:
    """Rows by queue, in it by first start, those that never started last; ties by submission.

    A promoted job counts as one that came at its promotion and starts anew.
    """
    table, slots = snap.table, snap.jobs.slots
    return attained.in_order(
        table.ints, table.floats, slots, _WHOLE, _REAL, standing.queue, standing.promoted, standing.running_s
    )


def next_move(snap: Snapshot, standing: Standing, count: Ints, limits: Floats, knob: float) -> float:
    """When time alone moves a job to another queue, if each has *count* workers from now on; inf if never."""
    soonest = attained.soonest(
        snap.table.ints,
        snap.jobs.slots,
        _WHOLE,
        count,
        standing.queue,
        standing.service,
        standing.running_s,
        standing.waiting_s,
        limits,
        knob,
    )
    # Rounding may bring us there a moment too early; the next try must be later, however little.
    return max(snap.now + soonest, math.nextafter(snap.now, math.inf))


def _counters(snap: Snapshot) -> tuple[Floats, Floats, Floats]:
    """GPU-seconds, running and waiting seconds of each job up to this moment."""
    jobs = snap.jobs
    since = np.maximum(snap.now - jobs.since, 0.0)
    runs = jobs.observed > 0
    gpus = jobs.observed * (jobs.milli / WHOLE)
    return jobs.gpu_seconds + since * gpus, jobs.running_s + since * runs, jobs.waiting_s + since * ~runs


def _entered(state: Attained, snap: Snapshot) -> tuple[Attained, Ints]:
    """The state with the jobs in view that it did not know and without those that are over; where each job stands."""
    table, slots = snap.table, snap.jobs.slots
    active, _ = table.index
    at, settled = attained.locate(table.ints, slots, _WHOLE, state.number, active)
    if settled:
        return state, at
    kept = table.find(state.number) >= 0
    fresh = table.number.take(slots[at < 0])
    number = np.concatenate([state.number[kept], fresh])
    by_number = number.argsort()

    def column(old: Column, new: float) -> Column:
        return np.concatenate([old[kept], np.full(len(fresh), new, old.dtype)])[by_number]

    state = Attained(
        number=number[by_number],
        queue=column(state.queue, 0),
        promoted=column(state.promoted, -math.inf),
        gpu_seconds=column(state.gpu_seconds, 0.0),
        running_s=column(state.running_s, 0.0),
        waiting_s=column(state.waiting_s, 0.0),
    )
    return state, attained.locate(table.ints, slots, _WHOLE, state.number, active)[0]


def _remembered(state: Attained, at: Ints, queue: Ints, found: Floats) -> Attained:
    """The state after the moves; jobs that are not in view stay as they were."""
    up = (found[attained.PROMOTED] != state.promoted[at]).nonzero()[0]

    def column(old: Floats, new: Floats) -> Floats:
        changed = old.copy()
        changed[at[up]] = new[up]
        return changed

    moved = state.queue.copy()
    moved[at] = queue
    return Attained(
        number=state.number,
        queue=moved,
        promoted=column(state.promoted, found[attained.PROMOTED]),
        gpu_seconds=column(state.gpu_seconds, found[attained.GPU_SECONDS]),
        running_s=column(state.running_s, found[attained.RUNNING_S]),
        waiting_s=column(state.waiting_s, found[attained.WAITING_S]),
    )
