"""Steps of policies over jobs in view: assign types, grant sizes, explain.

`ints` is the block of job columns; `slots` are the jobs in view, which are the rows here; `columns` are the numbers of
the columns `COLUMNS` in the block. `order` is a list of rows. `capacity` is per type, sizes are workers. One worker
takes its `milli`, or its `cpu` if that is 0. Type -1 is none.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.registry import kernel

COLUMNS = ("number", "min", "max", "step", "milli", "cpu", "count", "type", "any_type")
_NOT_ALLOWED = c.NOT_ALLOWED
#: Larger than any count.
_NEVER = 1 << 62


@kernel
def _needs(ints: Ints, slots: Ints, columns: Ints, size: Ints) -> Ints:
    """The need of each job at *size*."""
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
    """`home_types`; sets *keeps* where that is the current type."""
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
    """The current type of each job while it can hold *size* workers, else its first preferred one.

    -1 if none exists. *preference* is by type and row.
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
    """*most*, limited by the total of a type and the room of all queues of a job."""
    least = min(most, totals[kind])
    for i in range(lineage.shape[1]):
        if lineage[row, i] >= 0:
            least = min(least, room[lineage[row, i], kind])
    return least


@kernel
def _take(need: int, lineage: Ints, row: int, room: Ints, kind: int) -> None:
    """Subtract the need of a job from all its queues."""
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
    """The type on which each job competes; it needs *size* workers and may use *most*.

    See `policies/assign.py`. *totals* is the capacity per type including what others use, the upper limit of use.
    *lineage* lists the queues above each job (then -1); their *room*, per queue and type, must hold the job too. If no
    type has room now, a type on which the *guarantee* of the first queue covers the job comes first. *fair* is what
    that queue gets when all queues ask.
    """
    kinds = len(capacity)
    need, wish = _needs(ints, slots, columns, size), _needs(ints, slots, columns, most)
    keeps = np.zeros(len(slots), np.bool_)
    types = _homes(ints, slots, columns, preference, exists, capacity, need, keeps)
    # Remaining capacity and room of queues: after needs (left, rooms), and after all that jobs may use.
    left, rooms, free, free_rooms = capacity.copy(), room.copy(), capacity.copy(), room.copy()
    free_fair = fair.copy()
    has_queues = lineage.shape[1] > 0
    any_type = ints[columns[8]]
    for row in range(len(slots)):
        if keeps[row]:
            kind = types[row]
            may_use = _may_use(wish[row], lineage, row, room, totals, kind)
            left[kind] -= need[row]
            free[kind] -= may_use
            if has_queues:
                _take(need[row], lineage, row, rooms, kind)
                _take(may_use, lineage, row, free_rooms, kind)
                free_fair[lineage[row, 0], kind] -= may_use
    for row in order:
        if keeps[row] or types[row] < 0:
            continue
        wants = need[row]
        chosen, roomy, evenest, waits, guaranteed = -1, -1, -1, -1, -1
        most_slack = most_free = -np.inf
        chosen_rank = even_rank = roomy_rank = waits_rank = guaranteed_rank = _NOT_ALLOWED
        for kind in range(kinds):
            rank = preference[kind, row]
            if not exists[kind] or rank == _NOT_ALLOWED or rank > roomy_rank:
                continue
            if wants <= left[kind] and (not has_queues or _fits(wants, lineage, row, rooms, kind)):
                if rank < chosen_rank:
                    chosen, chosen_rank = kind, rank
                may_use = _may_use(wish[row], lineage, row, room, totals, kind)
                if may_use <= free[kind] and (not has_queues or _fits(may_use, lineage, row, free_rooms, kind)):
                    # Among equally preferred types: the one with the largest free fraction.
                    part = free[kind] / max(totals[kind], 1)
                    if has_queues:
                        queue = lineage[row, 0]
                        part = min(part, free_fair[queue, kind] / max(fair[queue, kind], 1))
                    if rank < roomy_rank or part > most_free:
                        roomy, roomy_rank, most_free = kind, rank, part
                elif any_type[slots[row]] > 0:
                    # What would be left as a fraction of the total; below 0, because it does not fit.
                    slack = (free[kind] - may_use) / max(totals[kind], 1)
                    if has_queues:
                        queue = lineage[row, 0]
                        slack = min(slack, (free_fair[queue, kind] - may_use) / max(fair[queue, kind], 1))
                    if slack > most_slack or (slack == most_slack and rank < even_rank):
                        evenest, even_rank, most_slack = kind, rank, slack
            if wants <= capacity[kind] and (not has_queues or _fits(wants, lineage, row, room, kind)):
                if rank < waits_rank:
                    waits, waits_rank = kind, rank
                if has_queues and rank < guaranteed_rank and wants <= guarantee[lineage[row, 0], kind]:
                    guaranteed, guaranteed_rank = kind, rank
        if roomy >= 0:
            chosen = roomy
        elif evenest >= 0:
            chosen = evenest
        if chosen >= 0:
            types[row] = chosen
            may_use = _may_use(wish[row], lineage, row, room, totals, chosen)
            left[chosen] -= wants
            free[chosen] -= may_use
            if has_queues:
                _take(wants, lineage, row, rooms, chosen)
                _take(may_use, lineage, row, free_rooms, chosen)
                free_fair[lineage[row, 0], chosen] -= may_use
        elif guaranteed >= 0:
            types[row] = guaranteed
        elif waits >= 0:
            types[row] = waits
    return types


@kernel
def fill_in_order(ints: Ints, slots: Ints, columns: Ints, capacity: Ints, order: Ints, types: Ints, size: Ints) -> Ints:
    """Workers per job: each in *order* gets *size*, or nothing if that no longer fits."""
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
def _steps_in_turn(cost: Ints, room: Ints, free: int) -> Ints:
    """Steps that each job grows on one type when all take one step in turn. Costs are above 0."""
    steps = np.zeros(len(cost), np.int64)
    rows = np.arange(len(cost))
    count = len(cost)
    while True:
        remaining = 0
        turn = 0
        turns = _NEVER
        for i in range(count):
            job = rows[i]
            if steps[job] < room[job] and cost[job] <= free:
                rows[remaining] = job
                remaining += 1
                turn += cost[job]
                turns = min(turns, room[job] - steps[job])
        count = remaining
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
    """Workers per job after free capacity went to running jobs, step by step in *order*.

    Many turns are taken at once: O(jobs x distinct room), independent of the free capacity. Workers without needs are
    added at once.
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
            # Up to the largest size on the grid; steps are above 0, so floor division is right.
            room[row] = (least[slot] + (most[slot] - least[slot]) // step[slot] * step[slot] - count[row]) // step[slot]
            if cost[row] == 0:
                grown[row] += room[row] * step[slot]
    rows = np.empty(len(order), np.int64)
    costs, rooms = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    for kind in range(len(capacity)):
        if free[kind] <= 0:
            continue
        number = 0
        for row in order:
            if types[row] == kind and room[row] > 0 and 0 < cost[row] <= free[kind]:
                rows[number], costs[number], rooms[number] = row, cost[row], room[row]
                number += 1
        steps = _steps_in_turn(costs[:number], rooms[:number], free[kind])
        for i in range(number):
            grown[rows[i]] += steps[i] * step[slots[rows[i]]]
    return grown


@kernel
def on_grid(ints: Ints, slots: Ints, columns: Ints, column: int) -> Ints:
    """The largest allowed size of each job up to the one in *column*; at least its minimum."""
    least, most, step, wanted = ints[columns[1]], ints[columns[2]], ints[columns[3]], ints[column]
    size = np.empty(len(slots), np.int64)
    for row in range(len(slots)):
        slot = slots[row]
        inside = max(min(wanted[slot], most[slot]), least[slot])
        size[row] = least[slot] + (inside - least[slot]) // step[slot] * step[slot]
    return size


@kernel
def growable(ints: Ints, slots: Ints, columns: Ints, free: Ints, order: Ints, types: Ints, count: Ints) -> Ints:
    """Rows, in *order*, of jobs that may grow and whose next step fits into what is *free*.

    The next step is the minimum for a job without workers, else one step. Workers without needs always fit.
    """
    least, step, milli, cpu = ints[columns[1]], ints[columns[3]], ints[columns[4]], ints[columns[5]]
    most = on_grid(ints, slots, columns, columns[2])
    rows = np.empty(len(order), np.int64)
    number = 0
    for row in order:
        if types[row] < 0 or count[row] >= most[row]:
            continue
        slot = slots[row]
        unit = milli[slot] if milli[slot] > 0 else cpu[slot]
        if unit == 0 or unit * (step[slot] if count[row] > 0 else least[slot]) <= free[types[row]]:
            rows[number] = row
            number += 1
    return rows[:number]


@kernel
def fitting_reasons(ints: Ints, slots: Ints, columns: Ints, free: Ints, types: Ints, code: int, other: int) -> Ints:
    """Per job *code* if its minimum fits into what is *free* of its type, else *other*."""
    least, milli, cpu = ints[columns[1]], ints[columns[4]], ints[columns[5]]
    codes = np.full(len(slots), other, np.int64)
    for row in range(len(slots)):
        slot = slots[row]
        unit = milli[slot] if milli[slot] > 0 else cpu[slot]
        if types[row] >= 0 and least[slot] * unit <= free[types[row]]:
            codes[row] = code
    return codes


@kernel
def free_after(ints: Ints, slots: Ints, columns: Ints, capacity: Ints, types: Ints, count: Ints) -> Ints:
    """Free capacity per type after these grants."""
    milli, cpu = ints[columns[4]], ints[columns[5]]
    free = capacity.copy()
    for row in range(len(slots)):
        if count[row] > 0:
            unit = milli[slots[row]]
            free[types[row]] -= count[row] * (unit if unit > 0 else cpu[slots[row]])
    return free


@kernel
def attribute_wait(
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
    """Per job *code* if its unknown remaining time (nan in *left*) is why it waits, else *other*.

    That is so if its minimum fits on its type, but not beside the jobs whose remaining time is known.
    """
    least, milli, cpu = ints[columns[1]], ints[columns[4]], ints[columns[5]]
    beside = capacity.copy()
    for row in range(len(slots)):
        if count[row] > 0 and not np.isnan(left[row]):
            unit = milli[slots[row]]
            beside[types[row]] -= count[row] * (unit if unit > 0 else cpu[slots[row]])
    reason = np.full(len(slots), other, np.int64)
    for row in range(len(slots)):
        if np.isnan(left[row]) and types[row] >= 0:
            unit = milli[slots[row]]
            need = least[slots[row]] * (unit if unit > 0 else cpu[slots[row]])
            if beside[types[row]] < need <= capacity[types[row]]:
                reason[row] = code
    return reason


@kernel
def build_decision(
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

    *allowed* is like *preference*, but by slot. *codes* are the reasons of a running job, of one without a type, and of
    one whose minimum exceeds *totals* on every allowed type; the evidence of the latter is the largest possible number
    of workers. *reason* is for all others.
    """
    number, least, milli, cpu = ints[columns[0]], ints[columns[1]], ints[columns[4]], ints[columns[5]]
    runs, no_type, too_large = codes[0], codes[1], codes[2]
    decision = np.zeros((6, len(slots)), np.int64)
    for rank in range(len(order)):
        decision[5, order[rank]] = rank
    for row in range(len(slots)):
        slot = slots[row]
        decision[0, row] = number[slot]
        if count[row] > 0:
            decision[1, row], decision[2, row], decision[3, row] = types[row], count[row], runs
            continue
        decision[1, row] = -1
        if types[row] < 0:
            decision[3, row] = no_type
            continue
        decision[3, row] = reason[row]
        unit = milli[slot] if milli[slot] > 0 else cpu[slot]
        if unit == 0:
            continue
        most = 0
        for kind in range(len(totals)):
            if allowed[kind, slot] != _NOT_ALLOWED:
                most = max(most, totals[kind] // unit)
        if most < least[slot]:
            decision[3, row], decision[4, row] = too_large, most
    return decision


@kernel
def decide_in_order(
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
    """`assign_types` without queues, `fill_in_order`, `grow_in_turns` if *grow*, `build_decision`.

    One call for all of them. *code* is the reason of jobs that wait.
    """
    lineage, room = np.empty((len(slots), 0), np.int64), np.empty((0, 0), np.int64)
    types = assign_types(
        ints, slots, columns, preference, exists, capacity, totals, order, size, most, lineage, room, room, room
    )
    count = fill_in_order(ints, slots, columns, capacity, order, types, size)
    if grow:
        count = grow_in_turns(ints, slots, columns, capacity, order, types, count)
    reason = np.full(len(slots), code, np.int64)
    return build_decision(ints, slots, columns, allowed, totals, order, types, count, reason, codes)
