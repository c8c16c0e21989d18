"""The kernels of `fill` in numpy, with lists of Python where one step depends on the one before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from levada.kernels.arrays import Bools, Floats, Ints
from levada.kernels.fill import NOT_ALLOWED


def home_types(
    ints: Ints, slots: Ints, columns: Ints, preference: Ints, exists: Bools, capacity: Ints, size: Ints
) -> Ints:
    """See `fill`."""
    need = size * _units(ints, slots, columns)
    return _homes(ints, slots, columns, _ranks(preference, exists), capacity, need)[0]


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
    """See `fill`."""
    need = size * _units(ints, slots, columns)
    ranks = _ranks(preference, exists)
    types, keeps = _homes(ints, slots, columns, ranks, capacity, need)
    options = ranks < NOT_ALLOWED
    looks = ~keeps & (types >= 0)
    # The usual cluster has one type: nobody has a choice, and there is nothing to do in order.
    if not (looks & (options.sum(axis=0) > 1)).any():
        return types
    stays, rows = keeps.nonzero()[0], order[looks.take(order)]
    may_use = np.minimum(most * _units(ints, slots, columns), totals[:, None])
    for line in lineage.T:
        may_use = np.minimum(may_use, np.where(line >= 0, room[line].T, may_use))
    needed, wished = (capacity.copy(), room.copy()), (capacity.copy(), room.copy())
    for (left, rooms), takes in ((needed, need[stays]), (wished, may_use[types[stays], stays])):
        np.subtract.at(left, types[stays], takes)
        for line in lineage.T:
            inside = line[stays] >= 0
            np.subtract.at(rooms, (line[stays][inside], types[stays][inside]), takes[inside])
    free_fair = fair.copy()
    if lineage.shape[1]:
        np.subtract.at(free_fair, (lineage[stays, 0], types[stays]), may_use[types[stays], stays])
    spreads = ints[columns[8]].take(slots)[rows] > 0
    ranks, need, may_use, lineage = ranks[:, rows], need[rows], may_use[:, rows], lineage[rows]
    large = (ranks < NOT_ALLOWED) & (capacity[:, None] >= need)
    for line in lineage.T:
        large &= (line < 0) | (need <= room[line].T)
    if lineage.shape[1]:
        # What a queue is sure of it may claim back, so its job had better wait there.
        sure = large & (need <= guarantee[lineage[:, 0]].T)
        large = np.where(sure.any(axis=0), sure, large)
    waits = np.where(large, ranks, NOT_ALLOWED)
    best = waits.argmin(axis=0)
    chosen = np.where(waits[best, np.arange(len(rows))] < NOT_ALLOWED, best, types[rows])
    # Less is left from one to the next, so who fits nowhere now never will.
    tries = np.asarray(((ranks < NOT_ALLOWED) & (needed[0][:, None] >= need)).any(axis=0)).nonzero()[0]
    ledgers = _Ledger(*needed), _Ledger(*wished), _Slack(totals, fair, wished[0], free_fair)
    found = _chosen(ranks[:, tries], need[tries], may_use[:, tries], lineage[tries], spreads[tries], *ledgers)
    chosen[tries] = np.where(found >= 0, found, chosen[tries])
    types[rows] = chosen
    return types


def give(ints: Ints, slots: Ints, columns: Ints, capacity: Ints, order: Ints, types: Ints, size: Ints) -> Ints:
    """See `fill`."""
    need = size * _units(ints, slots, columns)
    count = np.zeros(len(slots), np.int64)
    for kind, rows in _by_type(types, order, len(capacity)):
        given = rows[_give_in_order(need[rows], int(capacity[kind]))]
        count[given] = size[given]
    return count


def grow_in_turns(
    ints: Ints, slots: Ints, columns: Ints, capacity: Ints, order: Ints, types: Ints, count: Ints
) -> Ints:
    """See `fill`."""
    least, most, step = (ints[column].take(slots) for column in columns[1:4])
    unit = _units(ints, slots, columns)
    cost = step * unit
    room = np.where(count > 0, (least + (most - least) // step * step - count) // step, 0)
    free = _left_over(capacity, types, count, unit)
    grown: Ints = np.where(cost == 0, count + room * step, count)
    growing = order[((room > 0) & (cost > 0)).take(order)]
    for kind, rows in _by_type(types, growing, len(capacity)):
        grown[rows] += _turns(cost[rows], room[rows], int(free[kind])) * step[rows]
    return grown


def on_grid(ints: Ints, slots: Ints, columns: Ints, column: int) -> Ints:
    """See `fill`."""
    least, most, step = (ints[each].take(slots) for each in columns[1:4])
    inside = np.maximum(np.minimum(ints[column].take(slots), most), least)
    return least + (inside - least) // step * step


def climbers(ints: Ints, slots: Ints, columns: Ints, free: Ints, order: Ints, types: Ints, count: Ints) -> Ints:
    """See `fill`."""
    unit = _units(ints, slots, columns)
    price = np.where(count > 0, ints[columns[3]].take(slots), ints[columns[1]].take(slots)) * unit
    able = (types >= 0) & ((unit == 0) | (price <= free[types]))
    able &= count < on_grid(ints, slots, columns, columns[2])
    return order[able.take(order)]


def fitting(ints: Ints, slots: Ints, columns: Ints, free: Ints, types: Ints, code: int, other: int) -> Ints:
    """See `fill`."""
    need = ints[columns[1]].take(slots) * _units(ints, slots, columns)
    return np.where((types >= 0) & (need <= free[types]), code, other)


def left_over(ints: Ints, slots: Ints, columns: Ints, capacity: Ints, types: Ints, count: Ints) -> Ints:
    """See `fill`."""
    return _left_over(capacity, types, count, _units(ints, slots, columns))


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
    """See `fill`."""
    unit = _units(ints, slots, columns)
    unknown = np.isnan(left)
    if not unknown.any():
        return np.full(len(slots), other, np.int64)
    need = ints[columns[1]].take(slots) * unit
    beside = _left_over(capacity, types, np.where(unknown, 0, count), unit)
    blamed = unknown & (types >= 0) & (need <= capacity[types]) & (need > beside[types])
    return np.where(blamed, code, other)


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
    """See `fill`."""
    runs, no_type, too_large = codes
    found = np.zeros((6, len(slots)), np.int64)
    found[0] = ints[columns[0]].take(slots)
    given = count > 0
    found[1] = np.where(given, types, -1)
    found[2] = np.where(given, count, 0)
    found[3] = np.where(given, runs, np.where(types < 0, no_type, reason))
    found[5, order] = np.arange(len(order))
    waits = (~given & (types >= 0)).nonzero()[0]
    if not len(waits):
        return found
    mine = slots[waits]
    unit = _units(ints, mine, columns)
    most = np.where(allowed[:, mine] != NOT_ALLOWED, totals[:, None] // np.maximum(unit, 1), 0).max(axis=0)
    beyond = (most < ints[columns[1]].take(mine)) & (unit > 0)
    found[3, waits[beyond]] = too_large
    found[4, waits[beyond]] = most[beyond]
    return found


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
    """See `fill`."""
    lineage, room = np.empty((len(slots), 0), np.int64), np.empty((0, 0), np.int64)
    types = assign_types(
        ints, slots, columns, preference, exists, capacity, totals, order, size, most, lineage, room, room, room
    )
    count = give(ints, slots, columns, capacity, order, types, size)
    if grow:
        count = grow_in_turns(ints, slots, columns, capacity, order, types, count)
    reason = np.full(len(slots), code, np.int64)
    return judge(ints, slots, columns, allowed, totals, order, types, count, reason, codes)


def _units(ints: Ints, slots: Ints, columns: Ints) -> Ints:
    """What one worker of each job takes."""
    milli = ints[columns[4]].take(slots)
    return np.where(milli > 0, milli, ints[columns[5]].take(slots))


def _ranks(preference: Ints, exists: Bools) -> Ints:
    """The preference for types that exist."""
    return preference if exists.all() else np.where(exists[:, None], preference, NOT_ALLOWED)


def _homes(ints: Ints, slots: Ints, columns: Ints, ranks: Ints, capacity: Ints, need: Ints) -> tuple[Ints, Bools]:
    """`home_types`, and who keeps the type it runs on."""
    everyone = np.arange(len(slots))
    present = ints[columns[7]].take(slots)
    kind = np.maximum(present, 0)
    keeps = (ints[columns[6]].take(slots) > 0) & (present >= 0)
    keeps &= (ranks[kind, everyone] < NOT_ALLOWED) & (need <= capacity[kind])
    first = ranks.argmin(axis=0)
    first = np.where(ranks[first, everyone] < NOT_ALLOWED, first, -1)
    return np.where(keeps, present, first), keeps


def _chosen(
    ranks: Ints, need: Ints, may_use: Ints, lineage: Ints, spreads: Bools, sure: _Ledger, free: _Ledger, slack: _Slack
) -> Ints:
    """Per job its first type by rank where all that it may use fits beside those before it, else what it needs; or -1.

    Of types with equal rank it is the one with the largest free part. Who *spreads* takes the type with the most slack
    where not all fits. *sure* is what is left by what jobs need, and *free* by what they may use.
    """
    choices = ranks.argsort(axis=0, kind="stable").T.tolist()
    count = (ranks < NOT_ALLOWED).sum(axis=0).tolist()
    types, nothing = [-1] * len(need), [0] * len(ranks)
    columns = (need, may_use.T, lineage, spreads, ranks.T)
    jobs = zip(choices, count, *(column.tolist() for column in columns), strict=True)
    for job, (ranked, options, units, most, lines, even, rank) in enumerate(jobs):
        line = [queue for queue in lines if queue >= 0]
        fits = [kind for kind in ranked[:options] if sure.holds(units, kind, line)]
        if fits:
            roomy = [kind for kind in fits if free.holds(most[kind], kind, line)]
            if roomy:
                kind = slack.most([kind for kind in roomy if rank[kind] == rank[roomy[0]]], nothing, line[:1])
            else:
                kind = slack.most(fits, most, line[:1]) if even else fits[0]
            types[job] = kind
            sure.take(units, kind, line)
            free.take(most[kind], kind, line)
            slack.take(most[kind], kind, line[:1])
    return np.array(types, np.int64)


class _Ledger:
    """What is left of each type, and of it to each queue."""

    def __init__(self, left: Ints, room: Ints) -> None:
        self._left, self._room = left.tolist(), room.tolist()

    def holds(self, units: int, kind: int, line: list[int]) -> bool:
        """Whether so much is left, to all queues of a line."""
        return units <= self._left[kind] and all(units <= self._room[queue][kind] for queue in line)

    def take(self, units: int, kind: int, line: list[int]) -> None:
        """Takes it."""
        self._left[kind] -= units
        for queue in line:
            self._room[queue][kind] -= units


class _Slack:
    """What is left of each type, and of the fair part of each queue, beside the whole of it."""

    def __init__(self, totals: Ints, fair: Ints, free: Ints, free_fair: Ints) -> None:
        self._totals, self._fair, self._free, self._free_fair = (
            each.tolist() for each in (totals, fair, free, free_fair)
        )

    def most(self, kinds: list[int], units: list[int], queue: list[int]) -> int:
        """The first type with the most left, as a part of the whole, when a job of a queue, if any, takes *units*."""

        def left(kind: int) -> float:
            parts = [(self._free[kind] - units[kind]) / max(self._totals[kind], 1)]
            parts += [(self._free_fair[q][kind] - units[kind]) / max(self._fair[q][kind], 1) for q in queue]
            return float(min(parts))

        return max(kinds, key=left)

    def take(self, units: int, kind: int, queue: list[int]) -> None:
        """Takes it."""
        self._free[kind] -= units
        for q in queue:
            self._free_fair[q][kind] -= units


def _by_type(types: Ints, order: Ints, kinds: int) -> Iterator[tuple[int, Ints]]:
    """Each type that jobs compete on, with their rows in *order*."""
    sorted_types = types.take(order)
    for kind in range(kinds):
        rows = order[sorted_types == kind]
        if len(rows):
            yield kind, rows


def _left_over(capacity: Ints, types: Ints, count: Ints, unit: Ints) -> Ints:
    """Per type what is free after these grants."""
    free = capacity.copy()
    runs = (count > 0).nonzero()[0]
    np.subtract.at(free, types[runs], (count * unit)[runs])
    return free


def _give_in_order(need: Ints, free: int) -> Bools:
    """Who gets what it needs of one type. All that fit one after the other are served at once."""
    given = np.zeros(len(need), bool)
    rows = (need <= free).nonzero()[0]
    while len(rows):
        used = need[rows].cumsum()
        fit = int(used.searchsorted(free, "right"))
        given[rows[:fit]] = True
        if fit:
            free -= int(used[fit - 1])
        rows = rows[fit:]
        # Less is free from now on, so who does not fit now never will.
        rows = rows[need[rows] <= free]
    return given


def _turns(cost: Ints, room: Ints, free: int) -> Ints:
    """Steps each job grows on one type when all take one in turn. Costs are above 0."""
    steps = np.zeros(len(cost), np.int64)
    rows = ((room > 0) & (cost <= free)).nonzero()[0]
    while len(rows):
        turn = int(cost[rows].sum())
        turns = min(free // turn, int((room[rows] - steps[rows]).min()))
        if turns:
            steps[rows] += turns
            free -= turns * turn
        else:
            rows = rows[_give_in_order(cost[rows], free)]
            steps[rows] += 1
            free -= int(cost[rows].sum())
        rows = rows[(steps[rows] < room[rows]) & (cost[rows] <= free)]
    return steps
