"""Rounds of share policies: carry credit, choose jobs, build the decision.

A *combination* is a job, or two jobs that share devices. `members` has two rows of jobs for each (-1 = none): first all
single jobs, row by row, then the pairs. Shares, credits and priorities are by combination and type. `speed` is by job
and type: 1 where a job is fastest, 0 where it cannot run.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.rates import mask_rates
from levada.kernels.registry import kernel
from levada.kernels.round_turns import take_by_priority

#: Rows of the decision of `build_decision`.
TYPE, COUNT, REASON, EVIDENCE, RANK = range(5)
#: State between rounds: members by job number, shares, credits, and the jobs and capacity for which shares were
#: computed; and the jobs that started since (number, type, seconds since the round, in rows of three).
Memory = tuple[Ints, Floats, Floats, Floats, Ints, Floats]
#: The same by current rows (members, share, credit, inputs), needs and types of combinations, whether shares are stale,
#: and whether running combinations exceed the capacity.
CarriedOver = tuple[Ints, Floats, Floats, Floats, Ints, Ints, bool, bool]
#: In seconds: bonus of a running combination, limit of credit, value of the fastest type, value of a whole share.
Weights = tuple[float, float, float, float]
_NONE, _ALONE = -1, -2
_GONE = -2
_UNCHANGED_RANK = -1
_CPU = 0
_NOT_ALLOWED = c.NOT_ALLOWED
_RUNS, _CAPACITY, _TOO_LARGE, _UNKNOWN_TYPE, _IN_LINE, _CANNOT_RUN = 0, 2, 6, 7, 30, 31
_TIE_BREAK = 1e-9


@kernel
def carry_over(
    memory: Memory,
    jobs: Ints,
    reals: Floats,
    allowed: Bools,
    partner: Ints,
    room: Ints,
    capacity: Ints,
    passed: float,
    weights: Weights,
) -> CarriedOver:
    """Bring the stored state to the current rows, and add credit for the *passed* seconds.

    Ended jobs are dropped, new ones start with zero. *jobs*, *reals* and *allowed* are the blocks of `view.jobs`.
    *partner* is the job with which each job shares devices (-1: none any more, -2: it runs alone), or empty if jobs
    never share. Shares are stale if jobs, their sizes, weights or types, or the capacity have changed.
    """
    old_members, old_share, old_credit, old_inputs, old_room, filled = memory
    number, size, weight = jobs[0], jobs[1], reals[0]
    count, types = len(number), len(capacity)
    order = ascending(number)
    inputs = np.zeros((count, 4), np.float64)
    stale = old_inputs.shape != inputs.shape or len(old_room) != types
    for position in range(count):
        row = order[position]
        inputs[position, 0], inputs[position, 1], inputs[position, 2] = number[row], size[row], weight[row]
        for kind in range(allowed.shape[1]):
            if allowed[row, kind]:
                inputs[position, 3] += 2.0**kind
        if not stale:
            for column in range(4):
                stale |= inputs[position, column] != old_inputs[position, column]
    if not stale:
        for kind in range(types):
            stale |= room[kind] != old_room[kind]
    # The current row of each member. Combinations are mostly in the order of jobs: each search starts after the last.
    rows = np.empty(old_members.shape, np.int64)
    pairs, near = 0, 0
    for at in range(len(old_members)):
        for member in range(2):
            if old_members[at, member] == _NONE:
                rows[at, member] = _NONE
                continue
            if near < count and number[order[near]] == old_members[at, member]:
                position = near
            else:
                position = find(number, order, old_members[at, member])
            rows[at, member] = order[position] if position >= 0 else _GONE
            if member == 0 and position >= 0:
                near = position + 1
        pairs += rows[at, 0] >= 0 and rows[at, 1] >= 0
    members = np.empty((count + pairs, 2), np.int64)
    share, credit = np.zeros((count + pairs, types)), np.zeros((count + pairs, types))
    for row in range(count):
        members[row, 0], members[row, 1] = row, _NONE
    width = min(types, old_share.shape[1])
    next_pair = count
    for at in range(len(old_members)):
        a, b = rows[at, 0], rows[at, 1]
        if a < 0 or b == _GONE:
            continue
        to = a
        if b >= 0:
            to = next_pair
            members[to, 0], members[to, 1] = a, b
            next_pair += 1
        for kind in range(width):
            share[to, kind], credit[to, kind] = old_share[at, kind], old_credit[at, kind]
    need, runs = running(members, jobs, partner)
    if 0.0 < passed < np.inf:
        most = weights[1]
        served_fraction = _served_fraction(share, need, runs)
        for at in range(len(members)):
            for kind in range(types):
                owed = credit[at, kind] + share[at, kind] * passed * served_fraction[kind]
                if kind == runs[at]:
                    owed -= passed
                if owed > most:
                    owed = most
                elif owed < -most:
                    owed = -most
                credit[at, kind] = owed
    for at in range(len(filled)):
        position, kind = find(number, order, int(filled[at, 0])), int(filled[at, 1])
        if position >= 0 and runs[order[position]] == kind:
            credit[order[position], kind] += filled[at, 2]
    used = np.zeros(types, np.int64)
    for at in range(len(members)):
        if runs[at] >= 0:
            used[runs[at]] += need[at]
    crowded = False
    for kind in range(types):
        crowded |= used[kind] > capacity[kind]
    return members, share, credit, inputs, need, runs, bool(stale), bool(crowded)


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
    """Give free capacity to pending jobs between two rounds: `rates.mask_rates` and `choose_and_build`.

    Returns the decision, with unchanged ranks; and number, type and *passed* seconds since the round of each job that
    starts. Shares and credits are not used.
    """
    _, speed = mask_rates(rate, allowed, jobs[5])
    members = np.full((len(slots), 2), _NONE, np.int64)
    for row in range(len(slots)):
        members[row, 0] = row
    no_share, weights = np.zeros(speed.shape), (0.0, 0.0, 0.0, 0.0)
    need, runs = running(members, jobs, np.empty(0, np.int64))
    decision = choose_and_build(
        False,
        False,
        False,
        jobs,
        members,
        no_share,
        no_share,
        need,
        runs,
        speed,
        allowed,
        liking,
        slots,
        capacity,
        total,
        weights,
    )[0]
    decision[4] = _UNCHANGED_RANK
    started, number = np.empty((len(slots), 3)), 0
    for row in range(len(slots)):
        if decision[1, row] > 0:
            started[number, 0], started[number, 1], started[number, 2] = jobs[0, row], decision[0, row], passed
            number += 1
    return decision, started[:number].copy()


@kernel
def choose_and_build(
    due: bool,
    strict: bool,
    owed_only: bool,
    jobs: Ints,
    members: Ints,
    share: Floats,
    credit: Floats,
    need: Ints,
    runs: Ints,
    speed: Floats,
    allowed: Bools,
    liking: Ints,
    slots: Ints,
    capacity: Ints,
    total: Ints,
    weights: Weights,
) -> tuple[Ints, Ints, int, int, float]:
    """`choose` and `build_decision` in one call, for callers that do not place in between."""
    chosen = choose(due, strict, owed_only, members, share, credit, need, runs, speed, capacity, total, weights)
    return build_decision(
        owed_only, jobs, members, share, credit, runs, chosen, speed, allowed, liking, slots, capacity, total, weights
    )


@kernel
def _served_fraction(share: Floats, need: Ints, runs: Ints) -> Floats:
    """Per type the served fraction of the owed shares, at most 1."""
    types = share.shape[1]
    owed, served, served_fraction = np.zeros(types), np.zeros(types), np.ones(types)
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
            served_fraction[kind] = served[kind] / owed[kind]
    return served_fraction


@kernel
def ascending(number: Ints) -> Ints:
    """Rows by number; mostly they are already in that order."""
    for row in range(1, len(number)):
        if number[row] < number[row - 1]:
            return np.argsort(number, kind="mergesort")
    return np.arange(len(number))


@kernel
def find(number: Ints, order: Ints, wanted: int) -> int:
    """The position of a number in *order*, -1 = none."""
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
    """Need and current type (-1 = none) per combination; *partner* as for `carry_over`."""
    need, runs = np.empty(len(members), np.int64), np.empty(len(members), np.int64)
    for at in range(len(members)):
        a, b = members[at, 0], members[at, 1]
        need[at] = jobs[1, a] * jobs[2, a]
        runs[at] = jobs[3, a]
        if len(partner) and partner[a] != (_ALONE if b < 0 else b):
            runs[at] = _NONE
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
    """The type of each combination until the next round, -1 = none.

    If a round is *due*, combinations run by descending priority; if *owed_only*, only those with a share. Otherwise
    running ones continue. What is left goes to pending jobs, each on its relatively fastest type; under *strict* rules
    only to jobs with a share, and to none at a round. *total* is as for `take_by_priority`.
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
        chosen = take_by_priority(priority, need, members, left, total, taken)
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
    # Pending jobs that fit somewhere.
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
    for position in range(number):
        row = waits[position]
        for kind in range(types):
            relative[position, kind] = -np.inf
            if speed[row, kind] > 0.0 and (due or not strict or share[row, kind] > 0.0):
                relative[position, kind] = speed[row, kind] + (_TIE_BREAK if kind == runs[row] else 0.0)
    picked = take_by_priority(relative, need[waits], members[waits], left, total, taken)
    for position in range(number):
        if picked[position] >= 0:
            chosen[waits[position]] = picked[position]
    return chosen


@kernel
def _larger(a: float, b: float) -> float:
    return a if a > b else b


@kernel
def _priority(credit: float, due_here: float, fast: float, bonus: float, worth: float) -> float:
    """Priority of a combination on a type, in seconds. Pairs count as *fast* together."""
    return credit + due_here + worth - worth * (1.0 - fast) + bonus


@kernel
def _stable_s(
    owed_only: bool,
    members: Ints,
    share: Floats,
    credit: Floats,
    chosen: Ints,
    speed: Floats,
    weights: Weights,
) -> float:
    """Seconds for which no credit can overtake another, at least."""
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
def build_decision(
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
    """Type, size, reason, evidence and rank (by descending credit) per job; members by job number.

    Last come the number of combinations that continue on their type, the number that run, and for how many seconds, at
    least, no credit can overtake another: credits grow by shares, and shrink by running.

    *liking* is the table's preference by type and slot: all types that the user allows, also where a view binds a job
    to one. *total* is the capacity of each type. The rest is as for `choose`.
    """
    number, size, unit, least = jobs[0], jobs[1], jobs[2], jobs[4]
    count, types = speed.shape
    decision = np.zeros((5, count), np.int64)
    kinds = decision[0]
    kinds[:] = _NONE
    member_numbers = np.empty(members.shape, np.int64)
    kept_count, ran_count = 0, 0
    for at in range(len(members)):
        ran_count += runs[at] >= 0
        kept_count += runs[at] >= 0 and runs[at] == chosen[at]
        for member in range(2):
            row = members[at, member]
            member_numbers[at, member] = number[row] if row >= 0 else _NONE
            if row >= 0 and chosen[at] >= 0:
                kinds[row] = chosen[at]
    left = capacity.copy()
    for at in range(len(members)):
        if chosen[at] >= 0:
            left[chosen[at]] -= size[members[at, 0]] * unit[members[at, 0]]
    for row in range(count):
        if kinds[row] >= 0 and size[row] > 0:
            decision[1, row], decision[2, row] = size[row], _RUNS
            continue
        known, can_run, fits = kinds[row] >= 0, False, False
        for kind in range(types):
            known |= allowed[row, kind]
            # Also counts capacity that is out of view now.
            if speed[row, kind] > 0.0:
                can_run = True
                fits |= left[kind] >= size[row] * unit[row]
        kinds[row] = _NONE
        if not known:
            decision[2, row] = _UNKNOWN_TYPE
            continue
        decision[2, row] = _CANNOT_RUN if not can_run else _IN_LINE if fits else _CAPACITY
        if unit[row] > 0:
            at_most = 0
            for kind in range(types):
                if liking[kind, slots[row]] != _NOT_ALLOWED:
                    at_most = max(at_most, total[kind] // unit[row])
            if at_most < least[row]:
                decision[2, row], decision[3, row] = _TOO_LARGE, at_most
    _rank(number, credit, decision[4])
    quiet_s = _stable_s(owed_only, members, share, credit, chosen, speed, weights)
    return decision, member_numbers, int(kept_count), int(ran_count), float(quiet_s)


@kernel
def _rank(number: Ints, credit: Floats, rank: Ints) -> None:
    """The rank of each job by descending credit, at least 0; ties by number."""
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
    for position, at in enumerate(np.argsort(owed[:ahead], kind="mergesort")):
        rank[rows[at]] = position
