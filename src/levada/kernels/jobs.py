"""Predicates and small updates of a single job, for the kernels of the engine."""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.registry import kernel


@kernel
def find_slot(numbers: Ints, slots: Ints, number: int) -> int:
    """The slot of a job by its number, -1 if it has ended."""
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) >> 1
        if numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return slots[low] if low < len(numbers) and numbers[low] == number else -1


@kernel
def accrue(ints: Ints, floats: Floats, s: int, now: float) -> None:
    """Add the time since the last update to a job's waiting time, or to its running time and GPU time.

    An earlier *now* adds nothing.
    """
    passed = max(now - floats[c.SINCE, s], 0.0)
    workers = ints[c.OBSERVED, s]
    if workers > 0:
        gpus = passed * workers * (ints[c.MILLI, s] / 1000.0)
        floats[c.RUNNING_S, s] += passed
        floats[c.RUN_RUNNING_S, s] += passed
        floats[c.GPU_SECONDS, s] += gpus
        floats[c.RUN_GPU_SECONDS, s] += gpus
    elif ints[c.PHASE, s] < c.SUSPENDED:
        floats[c.WAITING_S, s] += passed
        floats[c.RUN_WAITING_S, s] += passed
    floats[c.SINCE, s] = max(floats[c.SINCE, s], now)


@kernel
def accrue_all(ints: Ints, floats: Floats, slots: Ints, now: float) -> None:
    """`accrue` for several jobs."""
    for s in slots:
        accrue(ints, floats, s, now)


@kernel
def protected(ints: Ints, s: int) -> bool:
    """Whether a decision must not stop, shrink or move the job."""
    if ints[c.COUNT, s] <= 0 or ints[c.HELD, s] <= 0:
        return False
    if ints[c.ACCEPTS_LOSS, s] > 0 and not ints[c.MIN, s] <= ints[c.HELD, s] <= ints[c.MAX, s]:
        return False
    kind = ints[c.PREEMPTIBLE, s]
    unsaved = kind == c.AUTO and ints[c.RESIZES_IN_PLACE, s] == 0 and ints[c.SAVED, s] == 0
    return kind == c.NEVER or unsaved


@kernel
def protected_slots(ints: Ints) -> Bools:
    """Per slot whether its job is `protected`."""
    marks = np.empty(ints.shape[1], np.bool_)
    for s in range(ints.shape[1]):
        marks[s] = protected(ints, s)
    return marks


@kernel
def guard_end(ints: Ints, floats: Floats, s: int, min_run_s: float, cooldown_s: float) -> float:
    """The time at which the guards of a running job end (minimum run time, cool-down)."""
    if ints[c.PREEMPTIBLE, s] != c.AT_ONCE:
        return max(floats[c.STARTED, s] + min_run_s, floats[c.RESIZED, s] + cooldown_s)
    return floats[c.RESIZED, s] + cooldown_s if floats[c.RESIZED, s] > floats[c.STARTED, s] else -np.inf


@kernel
def explains_stop(reason: int) -> bool:
    """Whether a reason explains why a job stopped, and so stays while the job only waits for capacity."""
    lost = reason == c.NODE_LOST or reason == c.INTERRUPTED or reason == c.DRAINED
    return lost or reason == c.RESTARTING or reason == c.LEFT or reason == c.MADE_ROOM


@kernel
def stays_until_start(reason: int) -> bool:
    """Whether a reason stays until the job runs again, even if it gets a grant."""
    return explains_stop(reason) or reason == c.BACKOFF or reason == c.SET_ASIDE


@kernel
def is_activity(reason: int) -> bool:
    """Whether a reason only describes what a job does, not why it stops or was stopped."""
    does = reason == c.SAYS_STARTING or reason == c.SAYS_STOPPING or reason == c.WAITS_FOR_DEVICES
    resizes = reason == c.SAYS_RESIZING or reason == c.SAYS_RESTARTING_RESIZED
    return does or resizes or reason == c.RUNS or reason == c.NEW


@kernel
def special(ints: Ints, s: int) -> bool:
    """Whether the job takes anything but whole GPUs."""
    return ints[c.HAS_ROWS, s] != 0 or ints[c.CPU, s] != 0 or ints[c.MEMORY, s] != 0


@kernel
def special_among(ints: Ints, slots: Ints) -> Ints:
    """The `special` jobs among these slots."""
    special_slots, number = np.empty(len(slots), np.int64), 0
    for s in slots:
        if special(ints, s):
            special_slots[number] = s
            number += 1
    return special_slots[:number].copy()


@kernel
def plan_operation(ints: Ints, s: int, differs: bool) -> bool:
    """Set the operation that leads from what the job holds to its target; whether there is one."""
    has, gets, phase = ints[c.HELD, s] > 0, ints[c.COUNT, s] > 0, ints[c.PHASE, s]
    op = c.OP_NONE
    if gets and (phase == c.RESIZING or (has and differs)):
        op = c.OP_RESIZE
    if gets and (not has or phase == c.STARTING):
        op = c.OP_START
    if has and (not gets or phase == c.STOPPING):
        op = c.OP_STOP
    ints[c.OP, s] = op
    return op != c.OP_NONE
