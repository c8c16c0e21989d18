"""Which combinations of jobs and types run, when they are taken by falling priority."""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.kernels.registry import kernel

#: So many at most may be in doubt of their wish before all are looked at in turn: each by itself takes a look at all.
_FEW = 16


@kernel
def take_turns(priority: Floats, need: Ints, members: Ints, left: Ints, total: Ints, taken: Bools) -> Ints:
    # Each combination waits with the best pair that still fits. What does not fit now never will, so a combination
    # that finds its pair gone goes back into line with the next; nobody need sort all pairs.
    count, types = priority.shape
    runs = np.full(count, -1, np.int64)
    kind, wish = np.empty(count, np.int64), np.empty(count, np.float64)
    line, size = np.empty(count, np.int64), 0
    asked = np.zeros(types, np.int64)
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
            kind[at], wish[at] = best, most
            line[size] = at
            size += 1
            asked[best] += need[at]
            paired |= b >= 0
    # Who has several equal wishes takes the type with the largest free part, which is known only when its turn comes.
    if not paired and not tied:
        size = _let_go(line[:size], priority, need, members, kind, wish, asked, left, taken, runs)
    # A heap: the highest wish stands first, of equal ones the lower row.
    start, least = size // 2, need[line[:size]].min() if size > 0 else 0
    while size > 0:
        if start > 0:
            start -= 1
            place, at = start, line[start]
        else:
            place, at = 0, line[0]
            a, b = members[at, 0], members[at, 1]
            again = False
            if not taken[a] and not (b >= 0 and taken[b]):
                if need[at] <= left[kind[at]]:
                    best, part = kind[at], left[kind[at]] / max(total[kind[at]], 1)
                    for k in range(types):
                        if priority[at, k] == wish[at] and need[at] <= left[k] and left[k] / max(total[k], 1) > part:
                            best, part = k, left[k] / max(total[k], 1)
                    runs[at] = kind[at] = best
                    left[kind[at]] -= need[at]
                    taken[a] = True
                    if b >= 0:
                        taken[b] = True
                    if left[kind[at]] < least and left.max() < least:
                        return runs  # nobody behind it fits anywhere
                else:
                    best, most = -1, -np.inf
                    for k in range(types):
                        if need[at] <= left[k] and priority[at, k] > most:
                            best, most = k, priority[at, k]
                    again = best >= 0
                    kind[at], wish[at] = best, most
            if not again:
                size -= 1
                at = line[size]
        # Let it sink to where it belongs.
        while 2 * place + 1 < size:
            child = 2 * place + 1
            if child + 1 < size:
                one, other = line[child + 1], line[child]
                if wish[one] > wish[other] or (wish[one] == wish[other] and one < other):
                    child += 1
            ahead = line[child]
            if not (wish[ahead] > wish[at] or (wish[ahead] == wish[at] and ahead < at)):
                break
            line[place] = ahead
            place = child
        if size > 0:
            line[place] = at
    return runs


@kernel
def _let_go(
    line: Ints,
    priority: Floats,
    need: Ints,
    members: Ints,
    kind: Ints,
    wish: Floats,
    asked: Ints,
    left: Ints,
    taken: Bools,
    runs: Ints,
) -> int:
    """Lets those in *line* run who get their wish whatever becomes of others; how many stay, in front of it.

    Mostly a little too much is asked of a type or two. Then only the last few who wish it are in doubt: the others are
    ahead of them, and must be ahead of whoever comes from another type, too, unless there is room for all of those.
    Where that cannot be told, all stay.
    """
    types = len(left)
    beyond, largest = 0, 0
    for k in range(types):
        beyond += max(asked[k] - max(left[k], 0), 0)
    for at in line:
        largest = max(largest, need[at])
    if beyond > _FEW * largest:
        return len(line)  # they cannot be few
    doubt, number = np.zeros(len(line), np.bool_), 0
    for k in range(types):
        sure = asked[k]
        while sure > max(left[k], 0):
            if number == _FEW:
                return len(line)
            last = _last(line, kind, wish, doubt, k)
            doubt[last] = True
            number += 1
            sure -= need[line[last]]
        asked[k] = sure
    for k in range(types):
        more, first, highest = 0, len(priority), -np.inf
        for place in range(len(line) if number > 0 else 0):
            at = line[place]
            if doubt[place] and kind[at] != k and need[at] <= left[k] and priority[at, k] > -np.inf:
                more += need[at]
                if priority[at, k] > highest:
                    first, highest = at, priority[at, k]
        if asked[k] > 0 and asked[k] + more > left[k]:
            at = line[_last(line, kind, wish, doubt, k)]
            if highest > wish[at] or (highest == wish[at] and first < at):
                return len(line)
    stay = 0
    for place in range(len(line)):
        at = line[place]
        if doubt[place]:
            line[stay] = at
            stay += 1
        else:
            runs[at] = kind[at]
            left[kind[at]] -= need[at]
            taken[members[at, 0]] = True
    return stay


@kernel
def _last(line: Ints, kind: Ints, wish: Floats, doubt: Bools, wanted: int) -> int:
    """The place of the one in *line* who comes last of those who wish that type and are not in *doubt*."""
    last, lowest = -1, np.inf
    for place in range(len(line)):
        at = line[place]
        if wish[at] <= lowest and kind[at] == wanted and not doubt[place]:
            last, lowest = place, wish[at]
    return last
