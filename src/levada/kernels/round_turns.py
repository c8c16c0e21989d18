"""Pick the combinations of jobs and types that run, by descending priority."""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.kernels.registry import kernel

#: Most contested combinations that are handled one by one, each with a scan of all; else the heap handles all.
_FEW = 16


@kernel
def take_by_priority(priority: Floats, need: Ints, members: Ints, left: Ints, total: Ints, taken: Bools) -> Ints:
    """The type on which each combination runs, -1 = none, by descending priority.

    *need* and *members* are by combination; reduces *left* (by type) and sets *taken* (by job). *total* is the capacity
    per type.
    """
    # Each combination is in the heap with its best type that still fits. What does not fit now never will, so if that
    # type is full, the combination is put back with the next one; not all (combination, type) pairs are sorted.
    count, types = priority.shape
    runs = np.full(count, -1, np.int64)
    kind, key = np.empty(count, np.int64), np.empty(count, np.float64)
    heap, size = np.empty(count, np.int64), 0
    demand = np.zeros(types, np.int64)
    paired = tied = False
    for at in range(count):
        a, b = members[at, 0], members[at, 1]
        if taken[a] or (b >= 0 and taken[b]):
            continue
        best, most = -1, -np.inf
        for k in range(types):
            if need[at] <= left[k]:
                tied |= priority[at, k] == most and best >= 0
                if priority[at, k] > most:
                    best, most = k, priority[at, k]
        if best >= 0:
            kind[at], key[at] = best, most
            heap[size] = at
            size += 1
            demand[best] += need[at]
            paired |= b >= 0
    # A combination with tied types takes the one with the largest free fraction, known only when its turn comes.
    if not paired and not tied:
        size = _start_uncontested(heap[:size], priority, need, members, kind, key, demand, left, taken, runs)
    # A heap by descending priority, then by ascending row.
    start, least = size // 2, need[heap[:size]].min() if size > 0 else 0
    while size > 0:
        if start > 0:
            start -= 1
            place, at = start, heap[start]
        else:
            place, at = 0, heap[0]
            a, b = members[at, 0], members[at, 1]
            again = False
            if not taken[a] and not (b >= 0 and taken[b]):
                if need[at] <= left[kind[at]]:
                    best, part = kind[at], left[kind[at]] / max(total[kind[at]], 1)
                    for k in range(types):
                        if priority[at, k] == key[at] and need[at] <= left[k] and left[k] / max(total[k], 1) > part:
                            best, part = k, left[k] / max(total[k], 1)
                    runs[at] = kind[at] = best
                    left[kind[at]] -= need[at]
                    taken[a] = True
                    if b >= 0:
                        taken[b] = True
                    if left[kind[at]] < least and left.max() < least:
                        return runs  # no later one fits anywhere
                else:
                    best, most = -1, -np.inf
                    for k in range(types):
                        if need[at] <= left[k] and priority[at, k] > most:
                            best, most = k, priority[at, k]
                    again = best >= 0
                    kind[at], key[at] = best, most
            if not again:
                size -= 1
                at = heap[size]
        # Sift down.
        while 2 * place + 1 < size:
            child = 2 * place + 1
            if child + 1 < size:
                one, other = heap[child + 1], heap[child]
                if key[one] > key[other] or (key[one] == key[other] and one < other):
                    child += 1
            ahead = heap[child]
            if not (key[ahead] > key[at] or (key[ahead] == key[at] and ahead < at)):
                break
            heap[place] = ahead
            place = child
        if size > 0:
            heap[place] = at
    return runs


@kernel
def _start_uncontested(
    line: Ints,
    priority: Floats,
    need: Ints,
    members: Ints,
    kind: Ints,
    key: Floats,
    demand: Ints,
    left: Ints,
    taken: Bools,
    runs: Ints,
) -> int:
    """Start the combinations in *line* that get their best type in any case; returns how many remain.

    Those that remain are moved to the front of *line*. Usually a type or two are slightly oversubscribed. Then only the
    last few combinations that want it are contested: the others are ahead of them, and must be ahead of combinations
    that come from another type, unless there is room for all of those. If that is undecidable, all remain.
    """
    types = len(left)
    excess, largest = 0, 0
    for k in range(types):
        excess += max(demand[k] - max(left[k], 0), 0)
    for at in line:
        largest = max(largest, need[at])
    if excess > _FEW * largest:
        return len(line)  # more than _FEW are contested
    contested, number = np.zeros(len(line), np.bool_), 0
    for k in range(types):
        uncontested = demand[k]
        while uncontested > max(left[k], 0):
            if number == _FEW:
                return len(line)
            last = _last_uncontested(line, kind, key, contested, k)
            contested[last] = True
            number += 1
            uncontested -= need[line[last]]
        demand[k] = uncontested
    for k in range(types):
        incoming, first, highest = 0, len(priority), -np.inf
        for place in range(len(line) if number > 0 else 0):
            at = line[place]
            if contested[place] and kind[at] != k and need[at] <= left[k] and priority[at, k] > -np.inf:
                incoming += need[at]
                if priority[at, k] > highest:
                    first, highest = at, priority[at, k]
        if demand[k] > 0 and demand[k] + incoming > left[k]:
            at = line[_last_uncontested(line, kind, key, contested, k)]
            if highest > key[at] or (highest == key[at] and first < at):
                return len(line)
    remaining = 0
    for place in range(len(line)):
        at = line[place]
        if contested[place]:
            line[remaining] = at
            remaining += 1
        else:
            runs[at] = kind[at]
            left[kind[at]] -= need[at]
            taken[members[at, 0]] = True
    return remaining


@kernel
def _last_uncontested(line: Ints, kind: Ints, key: Floats, contested: Bools, wanted: int) -> int:
    """Position of the last combination in *line* that wants this type and is not contested."""
    last, lowest = -1, np.inf
    for place in range(len(line)):
        at = line[place]
        if key[at] <= lowest and kind[at] == wanted and not contested[place]:
            last, lowest = place, key[at]
    return last
