"""Assign jobs to slots (type, position) of limited room at the least cost.

Successive shortest paths: jobs are added one by one, and each moves others along the cheapest chain of slots to one
with room. The assignment is optimal after every job.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels.registry import kernel

#: Relative improvement that a cheaper chain must bring.
_BETTER = 1e-12


@kernel
def cheapest_slots(time: Floats, gpu_type: Ints, position: Ints, room: Ints, order: Ints) -> Ints:
    """The slot of each job; job *j* in slot *s* costs `position[s] * time[j, gpu_type[s]]`.

    A slot with infinite cost is never used. Jobs are added in this *order*. Each type alone must have room for all
    jobs.
    """
    jobs, slots = len(time), len(room)
    left = room.copy()
    better_by = 0.0
    for job in range(jobs):
        for slot in range(slots):
            cost = time[job, gpu_type[slot]] * position[slot]
            if np.isfinite(cost):
                better_by = max(better_by, _BETTER * cost)
    slot_of = np.full(jobs, -1, np.int64)
    push = np.full((slots, slots), np.inf)
    pushed = np.full((slots, slots), -1, np.int64)
    reach, following = np.empty(slots), np.empty(slots)
    before = np.empty(slots, np.int64)
    source_of = np.empty(slots, np.int64)
    for job in order:
        for slot in range(slots):
            reach[slot] = time[job, gpu_type[slot]] * position[slot]
            before[slot] = -1
        changed = True
        while changed:
            changed = False
            following[:] = np.inf
            for source in range(slots):
                start = reach[source]
                for slot in range(slots):
                    chain = start + push[source, slot]
                    if chain < following[slot]:
                        following[slot] = chain
                        source_of[slot] = source
            for slot in range(slots):
                if following[slot] < reach[slot] - better_by:
                    reach[slot] = following[slot]
                    before[slot] = source_of[slot]
                    changed = True
        at = -1
        for slot in range(slots):
            if left[slot] > 0 and (at < 0 or reach[slot] < reach[at]):
                at = slot
        left[at] -= 1
        renew = np.zeros(slots, np.bool_)
        renew[at] = True
        while before[at] >= 0:
            source = before[at]
            slot_of[pushed[source, at]] = at
            at = source
            renew[at] = True
        slot_of[job] = at
        for slot in range(slots):
            if renew[slot]:
                push[slot] = np.inf
        for member in range(jobs):
            slot = slot_of[member]
            if slot >= 0 and renew[slot]:
                here = time[member, gpu_type[slot]] * position[slot]
                for other in range(slots):
                    if other != slot:
                        move = time[member, gpu_type[other]] * position[other] - here
                        if move < push[slot, other]:
                            push[slot, other] = move
                            pushed[slot, other] = member
    return slot_of
