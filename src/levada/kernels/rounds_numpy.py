"""`kernels.rounds` in numpy."""

from __future__ import annotations

import math

import numpy as np

from levada.kernels.arrays import Bools, Floats, Ints
from levada.kernels.rates_numpy import hold
from levada.kernels.rounds import Memory, Recalled, Weights

_NOBODY, _ALONE = -1, -2
#: A job that is no longer in view.
_GONE = -2
_CPU = 0
#: Partners where nobody shares devices, weights where they do not matter, and the rank of a job that keeps its own.
_ALL_ALONE = np.zeros(0, np.int64)
_NO_WEIGHTS = 0.0, 0.0, 0.0, 0.0
_AS_IT_WAS = -1
_NOT_ALLOWED = 32767
_RUNS, _CAPACITY, _TOO_LARGE, _UNKNOWN_TYPE, _IN_LINE, _CANNOT_RUN = 0, 2, 6, 7, 30, 31
#: Of two equally fast types, a job takes the one it is on.
_A_LITTLE = 1e-9


def recall(
    memory: Memory,
    jobs: Ints,
    reals: Floats,
    allowed: Bools,
    partner: Ints,
    room: Ints,
    capacity: Ints,
    passed: float,
    weights: Weights,
) -> Recalled:
    names, old_share, old_credit, old_asked, old_room, filled = memory
    number = jobs[0]
    order = np.argsort(number, kind="stable")
    by_number = number[order]
    types = allowed @ 2.0 ** np.arange(allowed.shape[1])
    asked = np.stack([by_number, jobs[1][order], reals[0][order], types[order]], axis=1)
    stale = not (np.array_equal(old_asked, asked) and np.array_equal(old_room, room))
    a, b = (_rows(by_number, order, names[:, member]) for member in (0, 1))
    single, pair = (a >= 0) & (b == _NOBODY), (a >= 0) & (b >= 0)
    alone = np.stack([np.arange(len(number)), np.full(len(number), _NOBODY)], axis=1)
    members = np.concatenate([alone, np.stack([a, b], axis=1)[pair]])
    share, credit = np.zeros((len(members), len(capacity))), np.zeros((len(members), len(capacity)))
    for mine, theirs in ((share, old_share), (credit, old_credit)):
        width = min(mine.shape[1], theirs.shape[1])
        mine[a[single], :width] = theirs[single, :width]
        mine[len(number) :, :width] = theirs[pair, :width]
    need, runs = running(members, jobs, partner)
    on = (runs >= 0).nonzero()[0]
    if 0 < passed < math.inf:
        credit += share * passed * _pace(share, need, on)
        credit[on, runs[on]] -= passed
        np.clip(credit, -weights[1], weights[1], out=credit)
    rows, kinds = _rows(by_number, order, filled[:, 0].astype(np.int64)), filled[:, 1].astype(np.int64)
    here = (rows >= 0) & (runs[np.maximum(rows, 0)] == kinds) if len(number) else np.zeros(len(filled), bool)
    np.add.at(credit, (rows[here], kinds[here]), filled[here, 2])
    used = np.bincount(runs[on], need[on], len(capacity))
    return members, share, credit, asked, need, runs, stale, bool((used > capacity).any())


def _pace(share: Floats, need: Ints, on: Ints) -> Floats:
    """Per type the part of what is owed there that can be given: less than all where those with a share cannot all run.

    Else credit would grow for all of them for ever, and whoever has the largest share would always come first. A
    combination that runs counts for the types of its shares, wherever it is.
    """
    # Cumulative sums add in order, as a loop does.
    owed = np.cumsum(np.vstack([np.zeros(share.shape[1]), share * need[:, None]]), axis=0)[-1]
    whole = np.cumsum(share[on], axis=1)[:, -1:]
    parts = np.divide(share[on] * need[on][:, None], whole, out=np.zeros((len(on), share.shape[1])), where=whole > 0)
    served = np.cumsum(np.vstack([np.zeros(share.shape[1]), parts]), axis=0)[-1]
    return np.where(owed > served, served / np.where(owed > 0, owed, 1.0), 1.0)


def _rows(by_number: Ints, order: Ints, numbers: Ints) -> Ints:
    """The row of each job by number; -1 stays -1, and a job that is not there any more is -2."""
    if not len(order):
        return np.full(len(numbers), _GONE)
    at = np.minimum(np.searchsorted(by_number, numbers), len(order) - 1)
    return np.where(numbers == _NOBODY, _NOBODY, np.where(by_number[at] == numbers, order[at], _GONE))


def fill(
    jobs: Ints,
    rate: Floats,
    allowed: Bools,
    liking: Ints,
    slots: Ints,
    capacity: Ints,
    total: Ints,
    passed: float,
) -> tuple[Ints, Floats]:
    _, speed = hold(rate, allowed, jobs[5])
    members = np.stack([np.arange(len(slots)), np.full(len(slots), _NOBODY)], axis=1)
    nothing = np.zeros(speed.shape)
    need, runs = running(members, jobs, _ALL_ALONE)
    chosen = choose(False, False, False, members, nothing, nothing, need, runs, speed, capacity, total, _NO_WEIGHTS)
    said = answer(
        False,
        jobs,
        members,
        nothing,
        nothing,
        runs,
        chosen,
        speed,
        allowed,
        liking,
        slots,
        capacity,
        total,
        _NO_WEIGHTS,
    )[0]
    said[4] = _AS_IT_WAS
    rows = said[1].nonzero()[0]
    began = np.stack([jobs[0][rows], said[0][rows], np.full(len(rows), passed)], axis=1)
    return said, began


def running(members: Ints, jobs: Ints, partner: Ints) -> tuple[Ints, Ints]:
    a, b = members[:, 0], members[:, 1]
    need = (jobs[1] * jobs[2])[a]
    runs = jobs[3][a]
    if len(partner):
        together = partner[a]
        runs = np.where(np.where(b < 0, together == _ALONE, together == b), runs, _NOBODY)
    return need, runs


def choose(
    due: bool,
    strict: bool,
    owed_only: bool,
    members: Ints,
    share: Floats,
    credit: Floats,
    need: Ints,
    runs: Ints,
    speed: Floats,
    capacity: Ints,
    total: Ints,
    weights: Weights,
) -> Ints:
    left, taken = capacity.copy(), np.zeros(len(speed), bool)
    able = _able(members, speed)
    if due:
        may = able & (share > 0) if owed_only else able
        priority = np.where(may, _priority(share, credit, runs, speed, weights), -np.inf)
        chosen = take_turns(priority, need, members, left, total, taken)
        if strict:
            return chosen
    else:
        chosen = runs.copy()
        on = (runs >= 0).nonzero()[0]
        np.subtract.at(left, runs[on], need[on])
        who = members[on]
        taken[who[who >= 0]] = True
        if strict:
            able &= share > 0
    waits = (~taken).nonzero()[0]
    if not len(waits) or not (left > 0).any():
        return chosen
    relative = speed[waits]
    here = (runs[waits] >= 0).nonzero()[0]
    relative[here, runs[waits[here]]] += _A_LITTLE
    priority = np.where(able[waits], relative, -np.inf)
    found = take_turns(priority, need[waits], members[waits], left, total, taken)
    chosen[waits] = np.where(found >= 0, found, chosen[waits])
    return chosen


def _able(members: Ints, speed: Floats) -> Bools:
    """Which combination can run on which type at all."""
    able = np.ones((len(members), speed.shape[1]), bool)
    able[: len(speed)] = speed > 0
    return able


def _priority(share: Floats, credit: Floats, runs: Ints, speed: Floats, weights: Weights) -> Floats:
    """How much each pair is wanted, in seconds, when combinations run on these types."""
    stickiness, _, worth_of_speed, worth_of_share = weights
    priority = credit + worth_of_share * share + worth_of_speed
    # Pairs are there because they are fast together: all of them count as their members' best.
    priority[: len(speed)] -= worth_of_speed * (1.0 - speed)
    on = (runs >= 0).nonzero()[0]
    on = on[share[on, runs[on]] > 0]
    priority[on, runs[on]] += stickiness
    return priority


def _quiet_s(
    owed_only: bool,
    members: Ints,
    share: Floats,
    credit: Floats,
    chosen: Ints,
    speed: Floats,
    weights: Weights,
) -> float:
    able = _able(members, speed)
    runs = np.zeros(able.shape, bool)
    rows = (chosen >= 0).nonzero()[0]
    runs[rows, chosen[rows]] = True
    waits = (able & (share > 0) if owed_only else able) & ~runs
    kinds = waits.any(axis=0)
    if not kinds.any():
        return math.inf
    priority = _priority(share, credit, chosen, speed, weights)
    highest = np.where(waits, priority, -np.inf).max(axis=0)
    lowest = np.where(runs, priority, np.inf).min(axis=0, initial=np.inf)
    fastest = np.where(waits, share, 0.0).max(axis=0)
    falls = np.where(runs, share - 1.0, 0.0).min(axis=0, initial=0.0)
    gap = np.where(kinds, (lowest - highest) / np.maximum(fastest - falls, 1e-12), np.inf)
    return float(np.maximum(gap, 0.0).min())


def answer(
    owed_only: bool,
    jobs: Ints,
    members: Ints,
    share: Floats,
    credit: Floats,
    runs: Ints,
    chosen: Ints,
    speed: Floats,
    allowed: Bools,
    liking: Ints,
    slots: Ints,
    capacity: Ints,
    total: Ints,
    weights: Weights,
) -> tuple[Ints, Ints, int, int, float]:
    number, size, unit, _, least, _ = jobs
    count_of = len(number)
    said = np.zeros((5, count_of), np.int64)
    types = np.full(count_of, _NOBODY, np.int64)
    for member in (0, 1):
        on = ((chosen >= 0) & (members[:, member] >= 0)).nonzero()[0]
        types[members[on, member]] = chosen[on]
    count = np.where(types >= 0, size, 0)
    # The type a job waits for: the fastest, else the first it may use.
    first = np.where(allowed.any(axis=1), allowed.argmax(axis=1), _NOBODY)
    home = np.where(types >= 0, types, np.where(speed.any(axis=1), speed.argmax(axis=1), first))
    need = size * unit
    left = capacity.copy()
    at = (chosen >= 0).nonzero()[0]
    np.subtract.at(left, chosen[at], need[members[at, 0]])
    # Whatever is out of view now: it could run there.
    able = speed > 0
    reason = np.where((able & (left >= need[:, None])).any(axis=1), _IN_LINE, _CAPACITY)
    reason = np.where(able.any(axis=1), reason, _CANNOT_RUN)
    reason = np.where(count > 0, _RUNS, np.where(home < 0, _UNKNOWN_TYPE, reason))
    waits = ((count == 0) & (home >= 0)).nonzero()[0]
    if len(waits):
        may = liking[:, slots[waits]] != _NOT_ALLOWED
        at_most = np.where(may, total[:, None] // np.maximum(unit[waits], 1), 0).max(axis=0)
        too_large = (at_most < least[waits]) & (unit[waits] > 0)
        reason[waits[too_large]] = _TOO_LARGE
        said[3][waits[too_large]] = at_most[too_large]
    said[0], said[1], said[2] = np.where(count > 0, types, _NOBODY), count, reason
    said[4][np.lexsort((number, -credit[:count_of].max(axis=1, initial=0.0)))] = np.arange(count_of)
    names = number[np.maximum(members, 0)] if count_of else members
    ran = runs >= 0
    kept = int(np.count_nonzero(ran & (chosen == runs)))
    quiet_s = _quiet_s(owed_only, members, share, credit, chosen, speed, weights)
    return said, np.where(members >= 0, names, _NOBODY), kept, int(np.count_nonzero(ran)), quiet_s


def take_turns(priority: Floats, need: Ints, members: Ints, left: Ints, total: Ints, taken: Bools) -> Ints:
    types = priority.shape[1]
    runs = np.full(len(priority), -1, np.int64)
    flat = priority.ravel()
    able = (flat > -np.inf).nonzero()[0]
    order = able[np.argsort(-flat[able], kind="stable")]
    room, whole = left.tolist(), np.maximum(total, 1).tolist()
    busy = taken.tolist()
    busy.append(False)  # nobody, the second member of a job alone
    needs, first, second = need.tolist(), members[:, 0].tolist(), members[:, 1].tolist()
    for at in order.tolist():
        row, kind = divmod(at, types)
        if needs[row] > room[kind] or busy[first[row]] or busy[second[row]]:
            continue
        equal = (priority[row] == flat[at]).nonzero()[0].tolist()
        if len(equal) > 1:
            kind = max((k for k in equal if needs[row] <= room[k]), key=lambda k: room[k] / whole[k])
        room[kind] -= needs[row]
        busy[first[row]] = True
        if second[row] >= 0:
            busy[second[row]] = True
        runs[row] = kind
    left[:] = room
    taken[:] = busy[:-1]
    return runs
