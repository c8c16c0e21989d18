"""The plain case of `kernels.steps.commit`, compiled: a few jobs that have nothing begin with one GPU each.

Nobody leaves, shrinks or moves. So placing them is a search for the pool with least to spare, as `seat` has it, and
only free devices change hands: no rule can be broken, and nothing need be copied to go back to.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.kernels.arrays import Bools, Ints
from levada.kernels.registry import kernel

#: More of them are placed together: each by itself looks at all devices of its type.
_FEW = 4
_BIG = 1 << 60


@kernel
def are_few_newcomers(said: Ints, slots: Ints, at: Ints, ints: Ints) -> bool:
    """Whether all rows in *at* give one GPU to a job that waits and has nothing."""
    if len(at) > _FEW:
        return False
    for r in at:
        s = slots[r]
        idle = ints[c.COUNT, s] == 0 and ints[c.HELD, s] == 0 and ints[c.PHASE, s] == c.PENDING
        plain = ints[c.MILLI, s] == c.WHOLE and ints[c.CPU, s] == 0 and ints[c.MEMORY, s] == 0
        if not idle or not plain or said[2, r] != 1:
            return False
    return True


@kernel
def seat_newcomers(
    said: Ints,
    slots: Ints,
    at: Ints,
    reached: Ints,
    ints: Ints,
    owner: Ints,
    index: Ints,
    held: Ints,
    usable: Bools,
    pool_start: Ints,
    pool_stop: Ints,
    pool_type: Ints,
) -> None:
    """Gives each of them a device, by number; *reached* is 0 where there is none."""
    if len(at) > 1:
        at = at[np.argsort(ints[c.NUMBER][slots[at]], kind="mergesort")]
    for r in at:
        best, best_late, best_room = -1, True, _BIG
        for p in range(len(pool_start)):
            if pool_type[p] != said[1, r]:
                continue
            room, now = 0, 0
            for d in range(pool_start[p], pool_stop[p]):
                free = owner[d] == c.FREE and usable[d]
                room += free
                now += free and held[d] == c.FREE
            late = now == 0
            if room > 0 and ((best_late and not late) or (late == best_late and room < best_room)):
                best, best_late, best_room = p, late, room
                if room == 1 and not late:
                    break
        reached[r] = best >= 0
        if best < 0:
            continue
        for d in range(pool_start[best], pool_stop[best]):
            if owner[d] == c.FREE and usable[d] and (best_late or held[d] == c.FREE):
                owner[d], index[d] = slots[r], 0
                break
