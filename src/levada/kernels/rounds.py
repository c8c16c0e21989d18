"""Rounds of share policies over whole columns: what is remembered of each job, who runs next, and what to say of it.

A *combination* is a job, or two that share devices. `members` holds two rows of jobs for each (-1 = nobody): first come
all jobs alone, row by row, then the pairs. Shares, credits and priorities are by combination and type. `speed` is by
job and type: 1 where a job is fastest, 0 where it cannot run.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.rates import hold
from levada.kernels.registry import kernel
from levada.kernels.turns import take_turns

#: Rows of what `answer` says of each job.
TYPE, COUNT, REASON, EVIDENCE, RANK = range(5)
#: What is remembered: members by job number, shares, credits, what shares were asked about, what there was then; and
#: who began to run meanwhile (number, type, seconds that had passed by then, in rows of three).
Memory = tuple[Ints, Floats, Floats, Floats, Ints, Floats]
#: The same by row now (members, share, credit, asked), what combinations need and where they run, and two questions
#: answered: whether shares are out of date, and whether those who run have more than there is for them.
Recalled = tuple[Ints, Floats, Floats, Floats, Ints, Ints, bool, bool]
#: Seconds that running already is worth, that are owed at most, that the fastest type is worth, and a whole share.
Weights = tuple[float, float, float, float]
_NOBODY, _ALONE = -1, -2
_GONE = -2
_AS_IT_WAS = -1
_CPU = 0
_NOT_ALLOWED = c.NOT_ALLOWED
_RUNS, _CAPACITY, _TOO_LARGE, _UNKNOWN_TYPE, _IN_LINE, _CANNOT_RUN = 0, 2, 6, 7, 30, 31
_A_LITTLE = 1e-9


@kernel
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
    """Brings what is remembered to the rows of now, and counts credit for the time that has *passed*.

    Jobs that are over go, new ones come with nothing. *jobs*, *reals* and *allowed* are the blocks of `view.jobs`.
    *partner* is per job who it shares devices with (-1: nobody any more, -2: it runs alone), or empty where nobody ever
    shares. Shares are out of date where jobs, their sizes, weights or types are others, or what there is.
    """
    names, old_share, old_credit, old_asked, old_room, filled = memory
    number, size, weight = jobs[0], jobs[1], reals[0]
    count, types = len(number), len(capacity)
    order = ascending(number)
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
                place = find(number, order, names[at, member])
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
        place, kind = find(number, order, int(filled[at, 0])), int(filled[at, 1])
        if place >= 0 and runs[order[place]] == kind:
            credit[order[place], kind] += filled[at, 2]
    used = np.zeros(types, np.int64)
    for at in range(len(members)):
        if runs[at] >= 0:
            used[runs[at]] += need[at]
    crowded = False
    for kind in range(types):
        crowded |= used[kind] > capacity[kind]
    return members, share, credit, asked, need, runs, bool(stale), bool(crowded)


@kernel
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
    """What is free goes to jobs that wait: `rates.hold`, `choose` and `answer` in one, between two rounds.

    What is said of each job, its rank as it was; and who begins to run: number, type, and the seconds that *passed*
    since the round. Nobody's share or credit matters then.
    """
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


@kernel
def _pace(share: Floats, need: Ints, runs: Ints) -> Floats:
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


@kernel
def ascending(number: Ints) -> Ints:
    """Rows by number; mostly they are in that order."""
    for row in range(1, len(number)):
        if number[row] < number[row - 1]:
            return np.argsort(number, kind="mergesort")
    return np.arange(len(number))


@kernel
def find(number: Ints, order: Ints, wanted: int) -> int:
    """The place of a number in *order*, -1 = none."""
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if number[order[middle]] < wanted:
            low = middle + 1
        else:
            high = middle
    return low if low < len(order) and number[order[low]] == wanted else -1


@kernel
def running(members: Ints, jobs: Ints, partner: Ints) -> tuple[Ints, Ints]:
    """Per combination what it needs and the type it runs on, -1 = none; *partner* as for `recall`."""
    need, runs = np.empty(len(members), np.int64), np.empty(len(members), np.int64)
    for at in range(len(members)):
        a, b = members[at, 0], members[at, 1]
        need[at] = jobs[1, a] * jobs[2, a]
        runs[at] = jobs[3, a]
        if len(partner) and partner[a] != (_ALONE if b < 0 else b):
            runs[at] = _NOBODY
    return need, runs


@kernel
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
    """Per combination the type it runs on until the next round, -1 = none.

    Where a round is *due*, all run by falling priority; where *owed_only*, only those with a share. Otherwise those who
    run go on. What is left goes to jobs that wait, each where it is fastest compared with its best; under *strict*
    rules only to those with a share, and at a round to nobody. *total* is as for `take_turns`.
    """
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


@kernel
def _larger(a: float, b: float) -> float:
    return a if a > b else b


@kernel
def _priority(credit: float, due_here: float, fast: float, bonus: float, worth: float) -> float:
    """How much a combination is wanted somewhere, in seconds. Pairs are there because they are *fast* together."""
    return credit + due_here + worth - worth * (1.0 - fast) + bonus


@kernel
def _quiet_s(
    owed_only: bool,
    members: Ints,
    share: Floats,
    credit: Floats,
    chosen: Ints,
    speed: Floats,
    weights: Weights,
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


@kernel
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
    """Per job type, size, reason, evidence and rank (by falling credit) in one block; and members by job number.

    Last come how many combinations go on where they run, how many run, and for how many seconds no credit can overtake
    another, at the least: credits grow by shares, and shrink by running.

    *liking* is the table's preference by type and slot: all types a user allows, also where a view binds a job to one.
    *total* is what there is of each type in all. The rest is as for `choose`.
    """
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
    quiet_s = _quiet_s(owed_only, members, share, credit, chosen, speed, weights)
    return said, names, int(kept), int(ran), float(quiet_s)


@kernel
def _rank(number: Ints, credit: Floats, rank: Ints) -> None:
    """The place of each job by falling credit, none below 0; of equals, the lower number comes first."""
    order = ascending(number)
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
