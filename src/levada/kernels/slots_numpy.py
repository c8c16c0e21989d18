"""The kernel of `slots` in numpy: one step of all chains at a time."""

from __future__ import annotations

import numpy as np

from levada.kernels.arrays import Floats, Ints

#: A chain must be better by this part of the largest cost, or rounding could go round in circles.
_BETTER = 1e-12


def cheapest_slots(time: Floats, gpu_type: Ints, position: Ints, room: Ints, order: Ints) -> Ints:
    """See `slots`."""
    slots = len(room)
    cost = time[:, gpu_type] * position
    better_by = _BETTER * cost[np.isfinite(cost)].max(initial=0.0)
    left = room.copy()
    slot_of = np.full(len(time), -1, np.int64)
    push = np.full((slots, slots), np.inf)  # the cheapest move of a job from a slot to another
    pushed = np.full((slots, slots), -1, np.int64)  # and which job that is
    for job in order:
        reach = cost[job].copy()
        before = np.full(slots, -1, np.int64)
        while True:
            chains = reach[:, None] + push
            cheapest = chains.min(axis=0)
            better = cheapest < reach - better_by
            if not better.any():
                break
            before[better] = chains.argmin(axis=0)[better]
            reach[better] = cheapest[better]
        at = int(np.argmin(np.where(left > 0, reach, np.inf)))
        left[at] -= 1
        touched = [at]
        while before[at] >= 0:
            source = int(before[at])
            slot_of[pushed[source, at]] = at
            at = source
            touched.append(at)
        slot_of[job] = at
        for slot in sorted(touched):
            members = np.flatnonzero(slot_of == slot)
            moves = cost[members] - cost[members, slot][:, None]
            first = moves.argmin(axis=0)
            push[slot] = moves[first, np.arange(slots)]
            pushed[slot] = members[first]
            push[slot, slot] = np.inf
    return slot_of
