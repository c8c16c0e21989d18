"""`kernels.rounds`, compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from levada.kernels.rates_numba import hold
from levada.kernels.turns_numba import take_turns

__all__ = ["answer", "choose", "fill", "recall", "running", "take_turns"]

_NOBODY, _ALONE = -1, -2
_GONE = -2
_AS_IT_WAS = -1
_CPU = 0
_NOT_ALLOWED = 32767
_RUNS, _CAPACITY, _TOO_LARGE, _UNKNOWN_TYPE, _IN_LINE, _CANNOT_RUN = 0, 2, 6, 7, 30, 31
_A_LITTLE = 1e-9

# Hot loops call nothing that takes arrays: each such call counts references, which takes longer than what it does.


@numba.njit(cache=True)
def recall(
    memory: Any,
    jobs: Any,
    reals: Any,
    allowed: Any,
    partner: Any,
    room: Any,
    capacity: Any,
    passed: float,
    weights: Any,
) -> Any:
    names, old_share, old_credit, old_asked, old_room, filled = memory
    number, size, weight = jobs[0], jobs[1], reals[0]
    count, types = len(number), len(capacity)
    order = _ascending(number)
    asked = np.zeros((count, 4), np.float64)
    stale = old_asked.shape != asked.shape or len(old_room) != types
    for place in range(count):
        row = order[place]
        asked[place, 0], asked[place, 1], asked[place, 2] = number[row], size[row], weight[row]
        for kind in range(allowed.shape[1]):
            if allowed[row, kind]:
                asked[place, 3] += 2.0**kind
        if not stale:
            for column in range(4):
                stale |= asked[place, column] != old_asked[place, column]
    if not stale:
        for kind in range(types):
            stale |= room[kind] != old_room[kind]
    # The row of each member now; combinations mostly stand in the order of jobs, so each search begins behind the last.
    rows = np.empty(names.shape, np.int64)
    pairs, near = 0, 0
    for at in range(len(names)):
        for member in range(2):
            if names[at, member] == _NOBODY:
                rows[at, member] = _NOBODY
                continue
            if near < count and number[order[near]] == names[at, member]:
                place = near
            else:
                place = _find(number, order, names[at, member])
            rows[at, member] = order[place] if place >= 0 else _GONE
            if member == 0 and place >= 0:
                near = place + 1
        pairs += rows[at, 0] >= 0 and rows[at, 1] >= 0
    members = np.empty((count + pairs, 2), np.int64)
    share, credit = np.zeros((count + pairs, types)), np.zeros((count + pairs, types))
    for row in range(count):
        members[row, 0], members[row, 1] = row, _NOBODY
    width = min(types, old_share.shape[1])
    following = count
    for at in range(len(names)):
        a, b = rows[at, 0], rows[at, 1]
        if a < 0 or b == _GONE:
            continue
        mine = a
        if b >= 0:
            mine = following
            members[mine, 0], members[mine, 1] = a, b
            following += 1
        for kind in range(width):
            share[mine, kind], credit[mine, kind] = old_share[at, kind], old_credit[at, kind]
    need, runs = running(members, jobs, partner)
    if 0.0 < passed < np.inf:
        most = weights[1]
        pace = _pace(share, need, runs)
        for at in range(len(members)):
            for kind in range(types):
                owed = credit[at, kind] + share[at, kind] * passed * pace[kind]
                if kind == runs[at]:
                    owed -= passed
                if owed > most:
                    owed = most
                elif owed < -most:
                    owed = -most
                credit[at, kind] = owed
    for at in range(len(filled)):
        place, kind = _find(number, order, int(filled[at, 0])), int(filled[at, 1])
        if place >= 0 and runs[order[place]] == kind:
            credit[order[place], kind] += filled[at, 2]
    used = np.zeros(types, np.int64)
    for at in range(len(members)):
        if runs[at] >= 0:
            used[runs[at]] += need[at]
    crowded = False
    for kind in range(types):
        crowded |= used[kind] > capacity[kind]
    return members, share, credit, asked, need, runs, stale, crowded


@numba.njit(cache=True)
def fill(
    jobs: Any,
    rate: Any,
    allowed: Any,
    liking: Any,
    slots: Any,
    capacity: Any,
    total: Any,
    passed: float,
) -> Any:
    _, speed = hold(rate, allowed, jobs[5])
    members = np.full((len(slots), 2), _NOBODY, np.int64)
    for row in range(len(slots)):
        members[row, 0] = row
    nothing, weights = np.zeros(speed.shape), (0.0, 0.0, 0.0, 0.0)
    need, runs = running(members, jobs, np.empty(0, np.int64))
    chosen = choose(False, False, False, members, nothing, nothing, need, runs, speed, capacity, total, weights)
    said = answer(
        False, jobs, members, nothing, nothing, runs, chosen, speed, allowed, liking, slots, capacity, total, weights
    )[0]
    said[4] = _AS_IT_WAS
    began, number = np.empty((len(slots), 3)), 0
    for row in range(len(slots)):
        if said[1, row] > 0:
            began[number, 0], began[number, 1], began[number, 2] = jobs[0, row], said[0, row], passed
            number += 1
    return said, began[:number].copy()


@numba.njit(cache=True)
def _pace(share: Any, need: Any, runs: Any) -> Any:
    types = share.shape[1]
    owed, served, pace = np.zeros(types), np.zeros(types), np.ones(types)
    for at in range(len(share)):
        whole = 0.0
        for kind in range(types):
            whole += share[at, kind]
            owed[kind] += share[at, kind] * need[at]
        if runs[at] >= 0 and whole > 0.0:
            for kind in range(types):
                served[kind] += share[at, kind] * need[at] / whole
    for kind in range(types):
        if owed[kind] > served[kind]:
            pace[kind] = served[kind] / owed[kind]
    return pace


@numba.njit(cache=True)
def _ascending(number: Any) -> Any:
    """Rows by number; mostly they are in that order."""
    for row in range(1, len(number)):
        if number[row] < number[row - 1]:
            return np.argsort(number, kind="mergesort")
    return np.arange(len(number))


@numba.njit(cache=True)
def _find(number: Any, order: Any, wanted: int) -> int:
    """The place of a number in *order*, -1 = none."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if number[order[middle]] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < len(order) and number[order[low]] == wanted else -1


@numba.njit(cache=True)
def running(members: Any, jobs: Any, partner: Any) -> Any:
    need, runs = np.empty(len(members), np.int64), np.empty(len(members), np.int64)
    for at in range(len(members)):
        a, b = members[at, 0], members[at, 1]
        need[at] = jobs[1, a] * jobs[2, a]
        runs[at] = jobs[3, a]
        if len(partner) and partner[a] != (_ALONE if b < 0 else b):
            runs[at] = _NOBODY
    return need, runs


@numba.njit(cache=True)
def choose(
    due: bool,
    strict: bool,
    owed_only: bool,
    members: Any,
    share: Any,
    credit: Any,
    need: Any,
    runs: Any,
    speed: Any,
    capacity: Any,
    total: Any,
    weights: Any,
) -> Any:
    stickiness, _, worth_of_speed, worth_of_share = weights
    count, types = speed.shape
    left, taken = capacity.copy(), np.zeros(count, np.bool_)
    if due:
        priority = np.empty(share.shape, np.float64)
        for at in range(len(members)):
            for kind in range(types):
                fast = speed[at, kind] if at < count else 1.0
                priority[at, kind] = -np.inf
                if fast > 0.0 and (not owed_only or share[at, kind] > 0.0):
                    due_here = worth_of_share * share[at, kind]
                    bonus = stickiness if kind == runs[at] and share[at, kind] > 0.0 else 0.0
                    priority[at, kind] = _priority(credit[at, kind], due_here, fast, bonus, worth_of_speed)
        chosen = take_turns(priority, need, members, left, total, taken)
        if strict:
            return chosen
    else:
        chosen = runs.copy()
        for at in range(len(members)):
            if runs[at] >= 0:
                left[runs[at]] -= need[at]
                taken[members[at, 0]] = True
                if members[at, 1] >= 0:
                    taken[members[at, 1]] = True
    # Whoever waits and would fit somewhere.
    waits, number = np.empty(count, np.int64), 0
    for row in range(count if left.max() > 0 else 0):
        fits = False
        if not taken[row]:
            for kind in range(types):
                fits |= need[row] <= left[kind] and speed[row, kind] > 0.0
        if fits:
            waits[number] = row
            number += 1
    if not number:
        return chosen
    waits = waits[:number]
    relative = np.empty((number, types), np.float64)
    for place in range(number):
        row = waits[place]
        for kind in range(types):
            relative[place, kind] = -np.inf
            if speed[row, kind] > 0.0 and (due or not strict or share[row, kind] > 0.0):
                relative[place, kind] = speed[row, kind] + (_A_LITTLE if kind == runs[row] else 0.0)
    found = take_turns(relative, need[waits], members[waits], left, total, taken)
    for place in range(number):
        if found[place] >= 0:
            chosen[waits[place]] = found[place]
    return chosen


@numba.njit(cache=True)
def _larger(a: float, b: float) -> float:
    return a if a > b else b


@numba.njit(cache=True)
def _priority(credit: float, due_here: float, fast: float, bonus: float, worth: float) -> float:
    """How much a combination is wanted somewhere, in seconds. Pairs are there because they are *fast* together."""
    return credit + due_here + worth - worth * (1.0 - fast) + bonus


@numba.njit(cache=True)
def _quiet_s(
    owed_only: bool,
    members: Any,
    share: Any,
    credit: Any,
    chosen: Any,
    speed: Any,
    weights: Any,
) -> float:
    stickiness, _, worth_of_speed, worth_of_share = weights
    count, types = speed.shape
    highest, lowest = np.full(types, -np.inf), np.full(types, np.inf)
    fastest, falls = np.zeros(types), np.zeros(types)
    for at in range(len(members)):
        for kind in range(types):
            fast = speed[at, kind] if at < count else 1.0
            due_here = worth_of_share * share[at, kind]
            if kind == chosen[at]:
                bonus = stickiness if share[at, kind] > 0.0 else 0.0
                priority = _priority(credit[at, kind], due_here, fast, bonus, worth_of_speed)
                if priority < lowest[kind]:
                    lowest[kind] = priority
                fall = share[at, kind] - 1.0
                if fall < falls[kind]:
                    falls[kind] = fall
            elif fast > 0.0 and (not owed_only or share[at, kind] > 0.0):
                priority = _priority(credit[at, kind], due_here, fast, 0.0, worth_of_speed)
                highest[kind] = _larger(highest[kind], priority)
                fastest[kind] = _larger(fastest[kind], share[at, kind])
    quiet = np.inf
    for kind in range(types):
        if highest[kind] > -np.inf:
            gap = (lowest[kind] - highest[kind]) / max(fastest[kind] - falls[kind], 1e-12)
            quiet = min(quiet, max(gap, 0.0))
    return quiet


@numba.njit(cache=True)
def answer(
    owed_only: bool,
    jobs: Any,
    members: Any,
    share: Any,
    credit: Any,
    runs: Any,
    chosen: Any,
    speed: Any,
    allowed: Any,
    liking: Any,
    slots: Any,
    capacity: Any,
    total: Any,
    weights: Any,
) -> Any:
    number, size, unit, least = jobs[0], jobs[1], jobs[2], jobs[4]
    count, types = speed.shape
    said = np.zeros((5, count), np.int64)
    kinds = said[0]
    kinds[:] = _NOBODY
    names = np.empty(members.shape, np.int64)
    kept, ran = 0, 0
    for at in range(len(members)):
        ran += runs[at] >= 0
        kept += runs[at] >= 0 and runs[at] == chosen[at]
        for member in range(2):
            row = members[at, member]
            names[at, member] = number[row] if row >= 0 else _NOBODY
            if row >= 0 and chosen[at] >= 0:
                kinds[row] = chosen[at]
    left = capacity.copy()
    for at in range(len(members)):
        if chosen[at] >= 0:
            left[chosen[at]] -= size[members[at, 0]] * unit[members[at, 0]]
    for row in range(count):
        if kinds[row] >= 0 and size[row] > 0:
            said[1, row], said[2, row] = size[row], _RUNS
            continue
        known, able, fits = kinds[row] >= 0, False, False
        for kind in range(types):
            known |= allowed[row, kind]
            # Whatever is out of view now: it could run there.
            if speed[row, kind] > 0.0:
                able = True
                fits |= left[kind] >= size[row] * unit[row]
        kinds[row] = _NOBODY
        if not known:
            said[2, row] = _UNKNOWN_TYPE
            continue
        said[2, row] = _CANNOT_RUN if not able else _IN_LINE if fits else _CAPACITY
        if unit[row] > 0:
            at_most = 0
            for kind in range(types):
                if liking[kind, slots[row]] != _NOT_ALLOWED:
                    at_most = max(at_most, total[kind] // unit[row])
            if at_most < least[row]:
                said[2, row], said[3, row] = _TOO_LARGE, at_most
    _rank(number, credit, said[4])
    return said, names, kept, ran, _quiet_s(owed_only, members, share, credit, chosen, speed, weights)


@numba.njit(cache=True)
def _rank(number: Any, credit: Any, rank: Any) -> None:
    """The place of each job by falling credit, none below 0; of equals, the lower number comes first."""
    order = _ascending(number)
    owed, rows = np.empty(len(order), np.float64), np.empty(len(order), np.int64)
    ahead = 0
    for row in order:
        most = 0.0
        for kind in range(credit.shape[1]):
            if credit[row, kind] > most:
                most = credit[row, kind]
        rank[row] = most > 0.0
        if most > 0.0:
            owed[ahead], rows[ahead] = -most, row
            ahead += 1
    behind = ahead
    for row in order:
        if not rank[row]:
            rank[row] = behind
            behind += 1
    for place, at in enumerate(np.argsort(owed[:ahead], kind="mergesort")):
        rank[rows[at]] = place
