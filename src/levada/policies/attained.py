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

from levada.core.snapshot import Snapshot
from levada.core.types import WHOLE, Bools, Floats, Ints

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
    jobs = snap.jobs
    state = _entered(state, snap)
    at = state.number.searchsorted(jobs.number)
    gpu_seconds, running_s, waiting_s = _counters(snap)
    service = gpu_seconds - state.gpu_seconds[at]
    ran = running_s - state.running_s[at]
    waited = waiting_s - state.waiting_s[at]
    queue = np.clip(state.queue[at], 0, len(limits))
    queue = np.maximum(queue, limits.searchsorted(service, "right"))
    waits = (jobs.count == 0) & (jobs.observed == 0)
    up = waits & (queue > 0) & (ran > 0) & (waited >= knob * ran)
    standing = Standing(
        queue=np.where(up, 0, queue),
        promoted=np.where(up, snap.now, state.promoted[at]),
        service=np.where(up, 0.0, service),
        running_s=np.where(up, 0.0, ran),
        waiting_s=np.where(up, 0.0, waited),
    )
    return standing, _remembered(state, at, standing, up, gpu_seconds, running_s, waiting_s)


def in_order(snap: Snapshot, standing: Standing) -> Ints:
    """Rows by queue, in it by first start, those that never started last; ties by submission.

    A promoted job counts as one that came at its promotion and starts anew.
    """
    jobs = snap.jobs
    came_back = standing.promoted > -math.inf
    runs_again = (jobs.count > 0) | (standing.running_s > 0)
    start = np.where(came_back, np.where(runs_again, standing.promoted, math.inf), jobs.first_started)
    entered = np.where(came_back, standing.promoted, jobs.submitted)
    return np.lexsort((jobs.number, jobs.submitted, entered, start, standing.queue))


def next_move(snap: Snapshot, standing: Standing, count: Ints, limits: Floats, knob: float) -> float:
    """When time alone moves a job to another queue, if each has *count* workers from now on; inf if never."""
    gpus = count * (snap.jobs.milli / WHOLE)
    ahead = np.append(limits, math.inf)[standing.queue] - standing.service
    with np.errstate(divide="ignore", invalid="ignore"):
        down = np.where(gpus > 0, ahead / gpus, math.inf)
    rises = (count == 0) & (standing.queue > 0) & (standing.running_s > 0)
    up = np.where(rises, knob * standing.running_s - standing.waiting_s, math.inf)
    soonest = float(min(down.min(initial=math.inf), up.min(initial=math.inf)))
    # Rounding may bring us there a moment too early; the next try must be later, however little.
    return max(snap.now + soonest, math.nextafter(snap.now, math.inf))


def _counters(snap: Snapshot) -> tuple[Floats, Floats, Floats]:
    """GPU-seconds, running and waiting seconds of each job up to this moment."""
    jobs = snap.jobs
    since = np.maximum(snap.now - jobs.since, 0.0)
    runs = jobs.observed > 0
    gpus = jobs.observed * (jobs.milli / WHOLE)
    return jobs.gpu_seconds + since * gpus, jobs.running_s + since * runs, jobs.waiting_s + since * ~runs


def _entered(state: Attained, snap: Snapshot) -> Attained:
    """The state with the jobs in view that it did not know, and without those that are over."""
    kept = snap.table.find(state.number) >= 0
    fresh = np.setdiff1d(snap.jobs.number, state.number, assume_unique=True)
    if kept.all() and not len(fresh):
        return state
    number = np.concatenate([state.number[kept], fresh])
    by_number = number.argsort()

    def column(old: Column, new: float) -> Column:
        return np.concatenate([old[kept], np.full(len(fresh), new, old.dtype)])[by_number]

    return Attained(
        number=number[by_number],
        queue=column(state.queue, 0),
        promoted=column(state.promoted, -math.inf),
        gpu_seconds=column(state.gpu_seconds, 0.0),
        running_s=column(state.running_s, 0.0),
        waiting_s=column(state.waiting_s, 0.0),
    )


def _remembered(
    state: Attained, at: Ints, standing: Standing, up: Bools, gpu_seconds: Floats, running_s: Floats, waiting_s: Floats
) -> Attained:
    """The state after the moves; jobs that are not in view stay as they were."""
    moved = state.queue[at] != standing.queue
    if not (moved.any() or up.any()):
        return state

    def column(old: Column, where: Bools, new: Column) -> Column:
        changed = old.copy()
        changed[at[where]] = new[where]
        return changed

    return Attained(
        number=state.number,
        queue=column(state.queue, moved, standing.queue),
        promoted=column(state.promoted, up, standing.promoted),
        gpu_seconds=column(state.gpu_seconds, up, gpu_seconds),
        running_s=column(state.running_s, up, running_s),
        waiting_s=column(state.waiting_s, up, waiting_s),
    )
