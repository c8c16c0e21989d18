"""What policies do with all jobs in view at once, on all GPU types: who competes where, who gets how much, and why not.

`ints` is the block of job columns and `slots` names the jobs in view, which are rows here; `columns` are the numbers of
the columns `COLUMNS` in the block. `order` lists rows. `capacity` is per type, sizes are workers, and what one worker
takes is its `milli`, or its `cpu` where that is 0. A type of -1 is none.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.registry import kernel

COLUMNS = ("number", "min", "max", "step", "milli", "cpu", "count", "type", "any_type")
_NOT_ALLOWED = c.NOT_ALLOWED
#: More than anything is counted.
_NEVER = 1 << 62


@kernel
def _needs(ints: Ints, slots: Ints, columns: Ints, size: Ints) -> Ints:
    """What each job takes at *size*."""
    milli, cpu = ints[columns[4]], ints[columns[5]]
    need = np.empty(len(slots), np.int64)
    for row in range(len(slots)):
        unit = milli[slots[row]]
        need[row] = size[row] * (unit if unit > 0 else cpu[slots[row]])
    return need


@kernel
def _homes(
    ints: Ints, slots: Ints, columns: Ints, preference: Ints, exists: Bools, capacity: Ints, need: Ints, keeps: Bools
) -> Ints:
    """`home_types`; sets *keeps* where that is the type it runs on."""
    count, kind = ints[columns[6]], ints[columns[7]]
    types = np.full(len(slots), -1, np.int64)
    for row in range(len(slots)):
        slot = slots[row]
        now = kind[slot]
        runs = count[slot] > 0 and now >= 0
        if runs and exists[now] and preference[now, row] != _NOT_ALLOWED and need[row] <= capacity[now]:
            keeps[row] = True
            types[row] = now
            continue
        best = _NOT_ALLOWED
        for other in range(len(capacity)):
            if exists[other] and preference[other, row] < best:
                best = preference[other, row]
                types[row] = other
    return types


@kernel
def home_types(
    ints: Ints, slots: Ints, columns: Ints, preference: Ints, exists: Bools, capacity: Ints, size: Ints
) -> Ints:
    """Per job its present type while that can hold *size* workers, else its first preferred one, -1 where none exists.

    *preference* is per type and row.
    """
    keeps = np.zeros(len(slots), np.bool_)
    need = _needs(ints, slots, columns, size)
    return _homes(ints, slots, columns, preference, exists, capacity, need, keeps)


@kernel
def _fits(need: int, lineage: Ints, row: int, room: Ints, kind: int) -> bool:
    """Whether all queues of a job have room for *need*."""
    least = need
    for i in range(lineage.shape[1]):
        if lineage[row, i] >= 0:
            least = min(least, room[lineage[row, i], kind])
    return least >= need


@kernel
def _may_use(most: int, lineage: Ints, row: int, room: Ints, totals: Ints, kind: int) -> int:
    """What of *most* there is of a type, in all and for all queues of a job."""
    least = min(most, totals[kind])
    for i in range(lineage.shape[1]):
        if lineage[row, i] >= 0:
            least = min(least, room[lineage[row, i], kind])
    return least


@kernel
def _take(need: int, lineage: Ints, row: int, room: Ints, kind: int) -> None:
    """Takes what a job needs from all its queues."""
    for i in range(lineage.shape[1]):
        if lineage[row, i] >= 0:
            room[lineage[row, i], kind] -= need


@kernel
def assign_types(
    ints: Ints,
    slots: Ints,
    columns: Ints,
    preference: Ints,
    exists: Bools,
    capacity: Ints,
    totals: Ints,
    order: Ints,
    size: Ints,
    most: Ints,
    lineage: Ints,
    room: Ints,
    guarantee: Ints,
    fair: Ints,
) -> Ints:
    """Per job the type it competes on: it needs *size* workers and may use *most*. See `policies/assign.py`.

    *totals* are per type what there is, whoever has it: nobody may use more. *lineage* names the queues above each job
    (then -1); their *room*, per queue and type, must hold it too. Where a type alone could hold what a job needs, one
    that the *guarantee* of its first queue covers comes first. *fair* is what that queue may count on when all ask.
    """
    kinds = len(capacity)
    need, wish = _needs(ints, slots, columns, size), _needs(ints, slots, columns, most)
    keeps = np.zeros(len(slots), np.bool_)
    types = _homes(ints, slots, columns, preference, exists, capacity, need, keeps)
    # What is left, of types and of queues, by what jobs need and by what they may use.
    left, rooms, free, free_rooms = capacity.copy(), room.copy(), capacity.copy(), room.copy()
    free_fair = fair.copy()
    # Without queues nobody need ask them.
    fenced = lineage.shape[1] > 0
    any_type = ints[columns[8]]
    for row in range(len(slots)):
        if keeps[row]:
            kind = types[row]
            may_use = _may_use(wish[row], lineage, row, room, totals, kind)
            left[kind] -= need[row]
            free[kind] -= may_use
            if fenced:
                _take(need[row], lineage, row, rooms, kind)
                _take(may_use, lineage, row, free_rooms, kind)
                free_fair[lineage[row, 0], kind] -= may_use
    for row in order:
        if keeps[row] or types[row] < 0:
            continue
        wants = need[row]
        found, room_for_all, evenest, waits, sure = -1, -1, -1, -1, -1
        most_slack = most_free = -np.inf
        found_rank = even_rank = all_rank = waits_rank = sure_rank = _NOT_ALLOWED
        for kind in range(kinds):
            rank = preference[kind, row]
            if not exists[kind] or rank == _NOT_ALLOWED or rank > all_rank:
                continue
            if wants <= left[kind] and (not fenced or _fits(wants, lineage, row, rooms, kind)):
                if rank < found_rank:
                    found, found_rank = kind, rank
                may_use = _may_use(wish[row], lineage, row, room, totals, kind)
                if may_use <= free[kind] and (not fenced or _fits(may_use, lineage, row, free_rooms, kind)):
                    # Of equally preferred types, the one with the largest free part.
                    part = free[kind] / max(totals[kind], 1)
                    if fenced:
                        queue = lineage[row, 0]
                        part = min(part, free_fair[queue, kind] / max(fair[queue, kind], 1))
                    if rank < all_rank or part > most_free:
                        room_for_all, all_rank, most_free = kind, rank, part
                elif any_type[slots[row]] > 0:
                    # What would be left, as a part of the whole: below 0, as there is too little.
                    slack = (free[kind] - may_use) / max(totals[kind], 1)
                    if fenced:
                        queue = lineage[row, 0]
                        slack = min(slack, (free_fair[queue, kind] - may_use) / max(fair[queue, kind], 1))
                    if slack > most_slack or (slack == most_slack and rank < even_rank):
                        evenest, even_rank, most_slack = kind, rank, slack
            if wants <= capacity[kind] and (not fenced or _fits(wants, lineage, row, room, kind)):
                if rank < waits_rank:
                    waits, waits_rank = kind, rank
                if fenced and rank < sure_rank and wants <= guarantee[lineage[row, 0], kind]:
                    sure, sure_rank = kind, rank
        if room_for_all >= 0:
            found = room_for_all
        elif evenest >= 0:
            found = evenest
        if found >= 0:
            types[row] = found
            may_use = _may_use(wish[row], lineage, row, room, totals, found)
            left[found] -= wants
            free[found] -= may_use
            if fenced:
                _take(wants, lineage, row, rooms, found)
                _take(may_use, lineage, row, free_rooms, found)
                free_fair[lineage[row, 0], found] -= may_use
        elif sure >= 0:
            types[row] = sure
        elif waits >= 0:
            types[row] = waits
    return types


@kernel
def give(ints: Ints, slots: Ints, columns: Ints, capacity: Ints, order: Ints, types: Ints, size: Ints) -> Ints:
    """Workers per job when each in *order* gets *size* or, where that does not fit any more, nothing."""
    milli, cpu = ints[columns[4]], ints[columns[5]]
    left = capacity.copy()
    count = np.zeros(len(slots), np.int64)
    for row in order:
        kind = types[row]
        if kind < 0:
            continue
        unit = milli[slots[row]]
        need = size[row] * (unit if unit > 0 else cpu[slots[row]])
        if need <= left[kind]:
            left[kind] -= need
            count[row] = size[row]
    return count


@kernel
def _turns(cost: Ints, room: Ints, free: int) -> Ints:
    """Steps each job grows on one type when all take one in turn. Costs are above 0."""
    steps = np.zeros(len(cost), np.int64)
    rows = np.arange(len(cost))
    count = len(cost)
    while True:
        kept = 0
        turn = 0
        turns = _NEVER
        for i in range(count):
            job = rows[i]
            if steps[job] < room[job] and cost[job] <= free:
                rows[kept] = job
                kept += 1
                turn += cost[job]
                turns = min(turns, room[job] - steps[job])
        count = kept
        if count == 0:
            return steps
        turns = min(turns, free // turn)
        for i in range(count):
            job = rows[i]
            if turns > 0:
                steps[job] += turns
                free -= turns * cost[job]
            elif cost[job] <= free:
                steps[job] += 1
                free -= cost[job]


@kernel
def grow_in_turns(
    ints: Ints, slots: Ints, columns: Ints, capacity: Ints, order: Ints, types: Ints, count: Ints
) -> Ints:
    """Workers per job after what is free went round, step by step in *order*, to jobs that run and can grow.

    Many turns are taken at once: O(jobs x distinct ways to go), however much is free. Workers that take nothing are
    there at once.
    """
    least, most, step = ints[columns[1]], ints[columns[2]], ints[columns[3]]
    milli, cpu = ints[columns[4]], ints[columns[5]]
    free, grown = capacity.copy(), count.copy()
    cost, room = np.zeros(len(slots), np.int64), np.zeros(len(slots), np.int64)
    for row in range(len(slots)):
        if count[row] > 0:
            slot = slots[row]
            unit = milli[slot] if milli[slot] > 0 else cpu[slot]
            free[types[row]] -= count[row] * unit
            cost[row] = step[slot] * unit
            # From the largest size on the grid; steps are above 0, so this rounds as a floor where it must.
            room[row] = (least[slot] + (most[slot] - least[slot]) // step[slot] * step[slot] - count[row]) // step[slot]
            if cost[row] == 0:
                grown[row] += room[row] * step[slot]
    rows = np.empty(len(order), np.int64)
    costs, rooms = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    for kind in range(len(capacity)):
        if free[kind] <= 0:
            continue
        found = 0
        for row in order:
            if types[row] == kind and room[row] > 0 and 0 < cost[row] <= free[kind]:
                rows[found], costs[found], rooms[found] = row, cost[row], room[row]
                found += 1
        steps = _turns(costs[:found], rooms[:found], free[kind])
        for i in range(found):
            grown[rows[i]] += steps[i] * step[slots[rows[i]]]
    return grown


@kernel
def on_grid(ints: Ints, slots: Ints, columns: Ints, column: int) -> Ints:
    """Per job the largest size it may have that is not above the one in *column*; its minimum where none is."""
    least, most, step, wanted = ints[columns[1]], ints[columns[2]], ints[columns[3]], ints[column]
    size = np.empty(len(slots), np.int64)
    for row in range(len(slots)):
        slot = slots[row]
        inside = max(min(wanted[slot], most[slot]), least[slot])
        size[row] = least[slot] + (inside - least[slot]) // step[slot] * step[slot]
    return size


@kernel
def climbers(ints: Ints, slots: Ints, columns: Ints, free: Ints, order: Ints, types: Ints, count: Ints) -> Ints:
    """Rows, in *order*, of jobs below their largest size that could pay for a grant more with what is *free*.

    That is their minimum where they have nothing, else one step. Workers that take nothing can always be paid for.
    """
    least, step, milli, cpu = ints[columns[1]], ints[columns[3]], ints[columns[4]], ints[columns[5]]
    most = on_grid(ints, slots, columns, columns[2])
    found = np.empty(len(order), np.int64)
    able = 0
    for row in order:
        if types[row] < 0 or count[row] >= most[row]:
            continue
        slot = slots[row]
        unit = milli[slot] if milli[slot] > 0 else cpu[slot]
        if unit == 0 or unit * (step[slot] if count[row] > 0 else least[slot]) <= free[types[row]]:
            found[able] = row
            able += 1
    return found[:able]


@kernel
def fitting(ints: Ints, slots: Ints, columns: Ints, free: Ints, types: Ints, code: int, other: int) -> Ints:
    """Per job *code* where its minimum fits in what is *free* of its type, else *other*."""
    least, milli, cpu = ints[columns[1]], ints[columns[4]], ints[columns[5]]
    found = np.full(len(slots), other, np.int64)
    for row in range(len(slots)):
        slot = slots[row]
        unit = milli[slot] if milli[slot] > 0 else cpu[slot]
        if types[row] >= 0 and least[slot] * unit <= free[types[row]]:
            found[row] = code
    return found


@kernel
def left_over(ints: Ints, slots: Ints, columns: Ints, capacity: Ints, types: Ints, count: Ints) -> Ints:
    """Per type what is free after these grants."""
    milli, cpu = ints[columns[4]], ints[columns[5]]
    free = capacity.copy()
    for row in range(len(slots)):
        if count[row] > 0:
            unit = milli[slots[row]]
            free[types[row]] -= count[row] * (unit if unit > 0 else cpu[slots[row]])
    return free


@kernel
def blame(
    ints: Ints,
    slots: Ints,
    columns: Ints,
    capacity: Ints,
    types: Ints,
    count: Ints,
    left: Floats,
    code: int,
    other: int,
) -> Ints:
    """Per job *code* where nan in *left* is why it waits, else *other*.

    That is so where its minimum fits on its type, but not beside the jobs of which *left* is known.
    """
    least, milli, cpu = ints[columns[1]], ints[columns[4]], ints[columns[5]]
    beside = capacity.copy()
    for row in range(len(slots)):
        if count[row] > 0 and not np.isnan(left[row]):
            unit = milli[slots[row]]
            beside[types[row]] -= count[row] * (unit if unit > 0 else cpu[slots[row]])
    blamed = np.full(len(slots), other, np.int64)
    for row in range(len(slots)):
        if np.isnan(left[row]) and types[row] >= 0:
            unit = milli[slots[row]]
            need = least[slots[row]] * (unit if unit > 0 else cpu[slots[row]])
            if beside[types[row]] < need <= capacity[types[row]]:
                blamed[row] = code
    return blamed


@kernel
def judge(
    ints: Ints,
    slots: Ints,
    columns: Ints,
    allowed: Ints,
    totals: Ints,
    order: Ints,
    types: Ints,
    count: Ints,
    reason: Ints,
    codes: Ints,
) -> Ints:
    """A decision as one block: number, type, count, reason, evidence and rank of each job.

    *allowed* is as *preference*, but by slot. *codes* are those of a job that runs, of one that has no type, and of one
    whose minimum is more than *totals* could ever hold on the types it is allowed: so many workers at most are the
    evidence. *reason* is for all the others.
    """
    number, least, milli, cpu = ints[columns[0]], ints[columns[1]], ints[columns[4]], ints[columns[5]]
    runs, no_type, too_large = codes[0], codes[1], codes[2]
    found = np.zeros((6, len(slots)), np.int64)
    for place in range(len(order)):
        found[5, order[place]] = place
    for row in range(len(slots)):
        slot = slots[row]
        found[0, row] = number[slot]
        if count[row] > 0:
            found[1, row], found[2, row], found[3, row] = types[row], count[row], runs
            continue
        found[1, row] = -1
        if types[row] < 0:
            found[3, row] = no_type
            continue
        found[3, row] = reason[row]
        unit = milli[slot] if milli[slot] > 0 else cpu[slot]
        if unit == 0:
            continue
        most = 0
        for kind in range(len(totals)):
            if allowed[kind, slot] != _NOT_ALLOWED:
                most = max(most, totals[kind] // unit)
        if most < least[slot]:
            found[3, row], found[4, row] = too_large, most
    return found


@kernel
def serve(
    ints: Ints,
    slots: Ints,
    columns: Ints,
    preference: Ints,
    exists: Bools,
    allowed: Ints,
    capacity: Ints,
    totals: Ints,
    order: Ints,
    size: Ints,
    most: Ints,
    grow: bool,
    code: int,
    codes: Ints,
) -> Ints:
    """`assign_types` without queues, `give`, `grow_in_turns` if they shall *grow*, and `judge`, in one go.

    *code* is the reason of whoever waits.
    """
    lineage, room = np.empty((len(slots), 0), np.int64), np.empty((0, 0), np.int64)
    types = assign_types(
        ints, slots, columns, preference, exists, capacity, totals, order, size, most, lineage, room, room, room
    )
    count = give(ints, slots, columns, capacity, order, types, size)
    if grow:
        count = grow_in_turns(ints, slots, columns, capacity, order, types, count)
    reason = np.full(len(slots), code, np.int64)
    return judge(ints, slots, columns, allowed, totals, order, types, count, reason, codes)
