"""The kernels of `attained` in numpy."""

from __future__ import annotations

import math

import numpy as np

from levada.kernels.arrays import Floats, Ints


def locate(ints: Ints, slots: Ints, whole: Ints, known: Ints, active: Ints) -> tuple[Ints, bool]:
    """See `attained`."""
    at = _places(ints[whole[0]].take(slots), known)
    return at, not bool((at < 0).any() or (_places(known, active) < 0).any())


def _places(numbers: Ints, among: Ints) -> Ints:
    if not len(among):
        return np.full(len(numbers), -1, np.int64)
    at = np.minimum(among.searchsorted(numbers), len(among) - 1)
    return np.where(among.take(at) == numbers, at, -1)


def stand(
    ints: Ints,
    floats: Floats,
    slots: Ints,
    whole: Ints,
    real: Ints,
    now: float,
    at: Ints,
    queue: Ints,
    promoted: Floats,
    gpu_seconds: Floats,
    running_s: Floats,
    waiting_s: Floats,
    limits: Floats,
    knob: float,
) -> tuple[Ints, Floats, bool]:
    """See `attained`."""
    milli, count, observed = (ints[column].take(slots) for column in whole[1:])
    since = np.maximum(now - floats[real[2]].take(slots), 0.0)
    runs = observed > 0
    used = floats[real[3]].take(slots) + since * (observed * (milli / 1000))
    running = floats[real[4]].take(slots) + since * runs
    waiting = floats[real[5]].take(slots) + since * ~runs
    service, ran, waited = used - gpu_seconds[at], running - running_s[at], waiting - waiting_s[at]
    before = queue[at]
    level = np.maximum(np.clip(before, 0, len(limits)), limits.searchsorted(service, "right"))
    up = (count == 0) & ~runs & (level > 0) & (ran > 0) & (waited >= knob * ran)
    level = np.where(up, 0, level)
    block = np.stack([promoted[at], service, ran, waited, used, running, waiting])
    if risen := bool(up.any()):
        block[0, up] = now
        block[1:4, up] = 0.0
    return level, block, risen or bool((level != before).any())


def in_order(
    ints: Ints, floats: Floats, slots: Ints, whole: Ints, real: Ints, queue: Ints, promoted: Floats, ran: Floats
) -> Ints:
    """See `attained`."""
    came_back = promoted > -math.inf
    runs_again = (ints[whole[2]].take(slots) > 0) | (ran > 0)
    start = np.where(came_back, np.where(runs_again, promoted, math.inf), floats[real[1]].take(slots))
    entered = np.where(came_back, promoted, floats[real[0]].take(slots))
    return np.lexsort((entered, start, queue))


def soonest(
    ints: Ints,
    slots: Ints,
    whole: Ints,
    count: Ints,
    queue: Ints,
    service: Floats,
    ran: Floats,
    waited: Floats,
    limits: Floats,
    knob: float,
) -> float:
    """See `attained`."""
    gpus = count * (ints[whole[1]].take(slots) / 1000)
    ahead = np.append(limits, math.inf)[queue] - service
    with np.errstate(divide="ignore", invalid="ignore"):
        down = np.where(gpus > 0, ahead / gpus, math.inf)
    rises = (count == 0) & (queue > 0) & (ran > 0)
    up = np.where(rises, knob * ran - waited, math.inf)
    return float(min(down.min(initial=math.inf), up.min(initial=math.inf)))
