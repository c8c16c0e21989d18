"""The most speed that jobs can have in all, each row at least what it is owed: prices of GPU types, found by edges.

    max sum_i f_i r_i :   r_i = sum_k v_ik x_ik >= o_i,   sum_k x_ik <= 1,   sum_i q_i x_ik <= n_k,   x >= 0

Without the GPUs in common, a row would choose one of few *ways*: all its time on one type, or just what it is owed, by
one type and idle time or by two types. At prices p of the types each row takes the way with the largest worth less
cost, and the sum of all these and of what all GPUs cost is never below the optimum. It is convex in p and made of flat
pieces, so its least value is where as many edges meet as there are types: an edge is where a row has two ways that are
equally good, or where a price is 0. From prices of 0, one edge is left at a time and the others are followed downhill
past all edges that still lead down. At the end, rows at an edge mix their ways so that GPUs suffice. The steps needed
hardly grow with the rows. Answers carry their proof: shares that are feasible, and prices that allow no more.

There is no twin in numpy: without numba, HiGHS does all this.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.kernels.price import invert
from levada.kernels.price_shares import fit, leximin_shares
from levada.kernels.registry import kernel
from levada.kernels.sums import total as add_up

#: Steps after which the search gives up.
_STEPS = 300
#: The part of all GPUs of a type below which nothing is missing; and how far slopes must differ, compared with each.
_LITTLE, _ALIKE = 1e-11, 1e-10


@kernel
def efficient_shares(
    rate: Floats,
    scale: Floats,
    weight: Floats,
    count: Floats,
    capacity: Floats,
    floor: float,
    row: Ints,
    favour: Floats,
    part: Floats,
    near: float,
    proved: float,
    trace: float,
) -> tuple[bool, Floats, Floats, float, float, Floats]:
    """Whether it was found; shares and levels of each group, the lowest level, the bound on that, and prices.

    A group is the *part* of the jobs of a *row* that find equal *favour*: what their speed counts, beside the weight.
    Levels, and the shares of which all jobs of a row keep the part *floor* in speed, are those of `leximin_shares`.
    """
    groups, types = len(row), len(capacity)
    plenty, fair, levels, lowest = _all_at_their_best(rate, scale, weight, count, capacity)
    if plenty:
        return True, fair[row], levels[row], float(lowest), float(lowest), np.zeros(types)
    nowhere = np.zeros((0, types))
    found, fair, levels, _, bound, prices, _ = leximin_shares(
        rate, scale, weight, count, capacity, nowhere, near, proved, trace
    )
    share, reached = np.zeros((groups, types)), np.zeros(groups)
    if not found:
        return False, share, reached, 0.0, float(bound), prices
    runs, kinds = np.flatnonzero(levels[row] > 0.0), np.flatnonzero(capacity > 0.0)
    speed, owed = np.empty((len(runs), len(kinds))), np.empty(len(runs))
    gpus, worth = np.empty(len(runs)), np.empty(len(runs))
    for at in range(len(runs)):
        i = row[runs[at]]
        best, had = 0.0, 0.0
        for k in kinds:
            best = max(best, rate[i, k])
        for j in range(len(kinds)):
            speed[at, j] = rate[i, kinds[j]] / best
            had += speed[at, j] * fair[i, kinds[j]]
        # A hair less than owed: else rounding could ask for more than there is.
        owed[at] = floor * had * (1 - 1e-9)
        gpus[at] = part[runs[at]] * scale[i]
        worth[at] = weight[i] * favour[runs[at]] * gpus[at]
    found, x, proof = most_speed(speed, worth, gpus, owed, capacity[kinds], proved)
    if not found:
        return False, share, reached, 0.0, float(bound), prices
    fit(x, gpus, capacity[kinds], trace)
    total, lowest = add_up(capacity), np.inf
    prices[:] = 0.0
    for j in range(len(kinds)):
        prices[kinds[j]] = proof[j]
    for at in range(len(runs)):
        i, group = row[runs[at]], runs[at]
        made, reference = 0.0, 0.0
        for j in range(len(kinds)):
            k = kinds[j]
            share[group, k] = x[at, j]
            made += rate[i, k] * x[at, j]
            reference += rate[i, k] * (capacity[k] / total)
        reached[group] = made * (scale[i] / (weight[i] * reference))
        lowest = min(lowest, reached[group])
    return True, share, reached, float(lowest), float(bound), prices


@kernel
def _all_at_their_best(
    rate: Floats, scale: Floats, weight: Floats, count: Floats, capacity: Floats
) -> tuple[bool, Floats, Floats, float]:
    """Whether each row can have all its time on the one type that is best for it; then these shares and their levels.

    Nobody could have more, whatever others have: there is nothing to solve.
    """
    rows, types = rate.shape
    share, levels, left = np.zeros((rows, types)), np.zeros(rows), capacity.copy()
    total, lowest = add_up(capacity), np.inf
    for i in range(rows):
        best, fastest, alone, reference = -1, 0.0, True, 0.0
        for k in range(types):
            if capacity[k] > 0.0:
                reference += rate[i, k] * (capacity[k] / total)
                if rate[i, k] > fastest:
                    best, fastest, alone = k, rate[i, k], True
                elif rate[i, k] == fastest:
                    alone = False
        if best < 0:
            continue
        left[best] -= count[i] * scale[i]
        if count[i] <= 0.0 or not alone or left[best] < 0.0:
            return False, share, levels, 0.0
        share[i, best] = 1.0
        levels[i] = fastest * (scale[i] / (weight[i] * reference))
        lowest = min(lowest, levels[i])
    return bool(lowest < np.inf), share, levels, float(lowest)


@kernel
def most_speed(
    speed: Floats, worth: Floats, gpus: Floats, owed: Floats, capacity: Floats, proved: float
) -> tuple[bool, Floats, Floats]:
    """Whether it was found; shares of each row, and prices of the types.

    Every row has a speed above 0, every capacity is above 0. *worth* is what a unit of speed of a row is worth, *gpus*
    what a full share takes, *proved* the gap to the bound that is accepted, relative.
    """
    rows, types = speed.shape
    unit = add_up(worth)
    first, kind, time, value, use = _ways(speed, worth / unit, gpus, owed, capacity)
    key, stands, mixed = np.empty(rows, np.int64), np.zeros(rows, np.bool_), np.zeros(len(value), np.bool_)
    for i in range(rows):
        key[i] = first[i]
        for a in range(first[i], first[i + 1]):
            if value[a] > value[key[i]]:
                key[i] = a
    # Edges: a row and its other way, or -1 - k and nothing where the price of type k is 0.
    edge, other = -1 - np.arange(types), np.zeros(types, np.int64)
    part, size, price, left = np.empty(types), np.empty(types), np.zeros(types), np.empty(types)
    matrix, inverse = np.empty((types, types)), np.empty((types, types))
    room = len(value) + types
    at, rise, who, to = np.empty(room), np.empty(room), np.empty(room, np.int64), np.empty(room, np.int64)
    done = False
    for _ in range(_STEPS):
        for j in range(types):
            for k in range(types):
                matrix[k, j] = 0.0
            if edge[j] < 0:
                matrix[-1 - edge[j], j] = 1.0
            else:
                a, b = key[edge[j]], other[j]
                for side in range(2):
                    matrix[kind[b, side], j] += use[b, side]
                    matrix[kind[a, side], j] -= use[a, side]
            # Rows may be tiny or huge: parts are those of all GPUs, not of a row.
            size[j] = 0.0
            for k in range(types):
                size[j] = max(size[j], abs(matrix[k, j]))
            for k in range(types):
                matrix[k, j] /= max(size[j], 1e-300)
        if not invert(matrix, inverse):
            break
        # What keys leave of each type, what the edges would take of it, and prices.
        left[:] = 1.0
        for i in range(rows):
            a = key[i]
            left[kind[a, 0]] -= use[a, 0]
            left[kind[a, 1]] -= use[a, 1]
        price[:] = 0.0
        leaves, least = -1, -_LITTLE
        for j in range(types):
            gain = (value[other[j]] - value[key[edge[j]]]) / size[j] if edge[j] >= 0 else 0.0
            part[j] = 0.0
            for k in range(types):
                part[j] += inverse[j, k] * left[k]
                price[k] += inverse[j, k] * gain
            if part[j] < least:
                leaves, least = j, part[j]
        for j in range(types):
            if edge[j] < 0:
                price[-1 - edge[j]] = 0.0
        # Nobody's key may take less than nothing either.
        whole = -1
        for j in range(types):
            if edge[j] >= 0:
                rest = 1.0
                for z in range(types):
                    if edge[z] == edge[j]:
                        rest -= part[z] / size[z]
                rest *= size[j]
                if rest < least:
                    leaves, least, whole = j, rest, edge[j]
        if leaves < 0:
            done = True
            break
        if whole >= 0:
            # Another way of the row becomes its key, and the old key the way that is left.
            before, key[whole] = key[whole], other[leaves]
            other[leaves] = before
            continue
        # Downhill: away from this edge, along all others.
        for k in range(types):
            left[k] = inverse[leaves, k]
            if edge[leaves] != -1 - k:
                for j in range(types):
                    if edge[j] == -1 - k:
                        left[k] = 0.0
        for j in range(types):
            if edge[j] >= 0 and j != leaves:
                stands[edge[j]] = mixed[other[j]] = True
        events = _edges(first, kind, value, use, key, stands, mixed, price, left, at, rise, who, to)
        for j in range(types):
            if edge[j] >= 0:
                stands[edge[j]] = mixed[other[j]] = False
        last = _turning(at, rise, events, least)
        if last < 0:
            break
        for event in range(events):
            if at[event] < at[last] or (at[event] == at[last] and event < last):
                key[who[event]] = to[event]
        edge[leaves], other[leaves] = who[last], to[last]
    share = np.zeros((rows, types))
    if not done:
        return False, share, price
    proof = _mixed(first, kind, time, value, use, key, edge, other, part / size, price, share, proved)
    return proof, share, price * (unit / capacity)


@kernel
def _ways(
    speed: Floats, worth: Floats, gpus: Floats, owed: Floats, capacity: Floats
) -> tuple[Ints, Ints, Floats, Floats, Floats]:
    """The ways of all rows: where those of each row begin, two types each, time on them, worth, and use of all GPUs."""
    rows, types = speed.shape
    room = rows * (2 * types + types * types // 4 + 1)
    first, kind, time = np.empty(rows + 1, np.int64), np.zeros((room, 2), np.int64), np.zeros((room, 2))
    value, use = np.empty(room), np.zeros((room, 2))
    at = 0
    for i in range(rows):
        first[i] = at
        need = min(owed[i], speed[i].max())
        if need <= 0.0:
            at += 1  # the way of doing nothing
        for k in range(types):
            fast = speed[i, k]
            if fast <= 0.0 or fast < need:
                continue
            kind[at, 0], time[at, 0] = k, 1.0
            at += 1
            if fast == need:
                continue
            if need > 0.0:
                kind[at, 0], time[at, 0] = k, need / fast
                at += 1
            for j in range(types):
                if 0.0 < speed[i, j] < need:
                    part = (need - speed[i, j]) / (fast - speed[i, j])
                    kind[at, 0], kind[at, 1], time[at, 0], time[at, 1] = k, j, part, 1.0 - part
                    at += 1
        for a in range(first[i], at):
            value[a] = worth[i] * (time[a, 0] * speed[i, kind[a, 0]] + time[a, 1] * speed[i, kind[a, 1]])
            for side in range(2):
                use[a, side] = gpus[i] * time[a, side] / capacity[kind[a, side]]
    first[rows] = at
    return first, kind[:at], time[:at], value[:at], use[:at]


@kernel
def _edges(
    first: Ints,
    kind: Ints,
    value: Floats,
    use: Floats,
    key: Ints,
    stands: Bools,
    mixed: Bools,
    price: Floats,
    step: Floats,
    at: Floats,
    rise: Floats,
    who: Ints,
    to: Ints,
) -> int:
    """Writes the edges on the way from *price* along *step*, and says how many: how far, how much steeper, whose.

    Rows that stand at another edge (*stands*, with their ways in *mixed*) and prices that come to 0 end the way: it
    rises without end there.
    """
    events = 0
    none = _ALIKE * np.abs(step).max()
    for k in range(len(price)):
        if step[k] < -none:
            at[events], rise[events], who[events], to[events] = max(price[k], 0.0) / -step[k], np.inf, -1 - k, 0
            events += 1
    for i in range(len(key)):
        a = key[i]
        far = 0.0
        while True:
            gain = value[a] - use[a, 0] * price[kind[a, 0]] - use[a, 1] * price[kind[a, 1]]
            slope = use[a, 0] * step[kind[a, 0]] + use[a, 1] * step[kind[a, 1]]
            best, nearest, bend = -1, np.inf, 0.0
            for b in range(first[i], first[i + 1]):
                if mixed[b]:
                    continue
                turn = slope - use[b, 0] * step[kind[b, 0]] - use[b, 1] * step[kind[b, 1]]
                if turn <= none * (use[a, 0] + use[a, 1] + use[b, 0] + use[b, 1]):
                    continue
                less = gain - value[b] + use[b, 0] * price[kind[b, 0]] + use[b, 1] * price[kind[b, 1]]
                ahead = max(less, 0.0) / turn
                if ahead < nearest or (ahead == nearest and turn > bend):
                    best, nearest, bend = b, ahead, turn
            if best < 0:
                break
            a = best
            if stands[i]:
                bend = np.inf
            far = max(far, nearest)
            at[events], rise[events], who[events], to[events] = far, bend, i, a
            events += 1
            if stands[i]:
                break
    return events


@kernel
def _turning(at: Floats, rise: Floats, events: int, slope: float) -> int:
    """The event at which a way that begins with this *slope* no longer leads down; -1: there is none."""
    order, low, high, behind = np.arange(events), 0, events, -1
    # Events before one of them come to the front; then it is known on which side of it the turning is.
    while low < high:
        at_middle = (low + high) // 2
        middle = order[at_middle]
        order[at_middle] = order[high - 1]
        front, before = low, 0.0
        for place in range(low, high - 1):
            event = order[place]
            if at[event] < at[middle] or (at[event] == at[middle] and event < middle):
                order[place], order[front] = order[front], event
                front += 1
                before += rise[event]
        if slope + before >= 0.0:
            high, behind = front, middle
            continue
        slope += before + rise[middle]
        if slope >= 0.0:
            return middle
        order[high - 1] = order[front]
        low = front + 1
    return behind  # by rounding, if there is one


@kernel
def _mixed(
    first: Ints,
    kind: Ints,
    time: Floats,
    value: Floats,
    use: Floats,
    key: Ints,
    edge: Ints,
    other: Ints,
    part: Floats,
    price: Floats,
    share: Floats,
    proved: float,
) -> bool:
    """Writes the shares; whether they fit, and are worth as much as these prices allow."""
    types = len(price)
    reached, bound = 0.0, add_up(price)
    taken = np.zeros(types)
    amount = np.zeros(len(value))
    for i in range(len(key)):
        amount[key[i]] = 1.0
    for j in range(types):
        if edge[j] >= 0:
            amount[other[j]] = min(max(part[j], 0.0), amount[key[edge[j]]])
            amount[key[edge[j]]] -= amount[other[j]]
    for i in range(len(key)):
        most = -np.inf
        for a in range(first[i], first[i + 1]):
            most = max(most, value[a] - use[a, 0] * price[kind[a, 0]] - use[a, 1] * price[kind[a, 1]])
            reached += amount[a] * value[a]
            for side in range(2):
                taken[kind[a, side]] += amount[a] * use[a, side]
                share[i, kind[a, side]] += amount[a] * time[a, side]
        bound += most
    fits = price.min() >= -proved and bound - reached <= proved * bound
    for k in range(types):
        fits &= taken[k] <= 1.0 + proved
    return fits
