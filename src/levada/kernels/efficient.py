"""Maximize the total speed with a minimum for each row, by prices of types.

    max sum_i f_i r_i :   r_i = sum_k v_ik x_ik >= o_i,   sum_k x_ik <= 1,   sum_i q_i x_ik <= n_k,   x >= 0

Without the shared GPUs, a row would choose one of a few *options*: all its time on one type, or exactly what it is
owed, from one type and idle time or from two types. At prices p, each row takes the option with the largest value minus
cost. The sum of these plus the cost of all GPUs is an upper bound of the optimum. The bound is convex and piecewise
linear in p, so its minimum is a vertex where as many edges meet as there are types. An edge is where a row has two
equally good options, or where a price is 0. The search starts at prices of 0. In each step it leaves one edge and
follows the others downhill, past all edges beyond which the bound still falls. At the end, rows on an edge mix their
options so that the GPUs suffice. The number of steps hardly grows with the number of rows. A result includes its proof:
feasible shares, and prices that allow no better ones.

There is no numpy version: without numba, HiGHS solves these problems.
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
#: Accepted overuse, as a fraction of a type's GPUs; and the relative difference from which slopes count as different.
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
    """Whether it was solved; shares and levels of groups, lowest level, its bound, prices.

    A group is the *part* of the jobs of a *row* with equal *favour*, a factor of their speed in the objective besides
    the weight. Levels, and the shares of which each row keeps at least the fraction *floor* in speed, are those of
    `leximin_shares`.
    """
    groups, types = len(row), len(capacity)
    plenty, fair, levels, lowest = _best_types_suffice(rate, scale, weight, count, capacity)
    if plenty:
        return True, fair[row], levels[row], float(lowest), float(lowest), np.zeros(types)
    nowhere = np.zeros((0, types))
    solved, fair, levels, _, bound, prices, _ = leximin_shares(
        rate, scale, weight, count, capacity, nowhere, near, proved, trace
    )
    share, reached = np.zeros((groups, types)), np.zeros(groups)
    if not solved:
        return False, share, reached, 0.0, float(bound), prices
    runs, kinds = np.flatnonzero(levels[row] > 0.0), np.flatnonzero(capacity > 0.0)
    speed, owed = np.empty((len(runs), len(kinds))), np.empty(len(runs))
    gpus, worth = np.empty(len(runs)), np.empty(len(runs))
    for at in range(len(runs)):
        i = row[runs[at]]
        best, fair_speed = 0.0, 0.0
        for k in kinds:
            best = max(best, rate[i, k])
        for j in range(len(kinds)):
            speed[at, j] = rate[i, kinds[j]] / best
            fair_speed += speed[at, j] * fair[i, kinds[j]]
        # Slightly less than owed: otherwise rounding could exceed the capacity.
        owed[at] = floor * fair_speed * (1 - 1e-9)
        gpus[at] = part[runs[at]] * scale[i]
        worth[at] = weight[i] * favour[runs[at]] * gpus[at]
    solved, x, proof = most_speed(speed, worth, gpus, owed, capacity[kinds], proved)
    if not solved:
        return False, share, reached, 0.0, float(bound), prices
    fit(x, gpus, capacity[kinds], trace)
    total, lowest = add_up(capacity), np.inf
    prices[:] = 0.0
    for j in range(len(kinds)):
        prices[kinds[j]] = proof[j]
    for at in range(len(runs)):
        i, group = row[runs[at]], runs[at]
        speed_sum, reference = 0.0, 0.0
        for j in range(len(kinds)):
            k = kinds[j]
            share[group, k] = x[at, j]
            speed_sum += rate[i, k] * x[at, j]
            reference += rate[i, k] * (capacity[k] / total)
        reached[group] = speed_sum * (scale[i] / (weight[i] * reference))
        lowest = min(lowest, reached[group])
    return True, share, reached, float(lowest), float(bound), prices


@kernel
def _best_types_suffice(
    rate: Floats, scale: Floats, weight: Floats, count: Floats, capacity: Floats
) -> tuple[bool, Floats, Floats, float]:
    """Whether every row can spend all its time on its single best type; shares and levels.

    Then there is nothing to solve: no row could have more in any solution.
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
    """Whether it was solved; shares of each row, and prices of the types.

    Every row has a speed above 0, every capacity is above 0. *worth* is the value of a unit of speed of a row, *gpus*
    what a full share takes, *proved* the accepted relative gap to the bound.
    """
    rows, types = speed.shape
    unit = add_up(worth)
    first, kind, time, value, use = _options(speed, worth / unit, gpus, owed, capacity)
    key, fixed, mixed = np.empty(rows, np.int64), np.zeros(rows, np.bool_), np.zeros(len(value), np.bool_)
    for i in range(rows):
        key[i] = first[i]
        for a in range(first[i], first[i + 1]):
            if value[a] > value[key[i]]:
                key[i] = a
    # Edges: a row and its other option, or -1 - k (and unused) where the price of type k is 0.
    edge, other = -1 - np.arange(types), np.zeros(types, np.int64)
    part, size, price, left = np.empty(types), np.empty(types), np.zeros(types), np.empty(types)
    matrix, inverse = np.empty((types, types)), np.empty((types, types))
    room = len(value) + types
    at, rise, row_of, option_of = np.empty(room), np.empty(room), np.empty(room, np.int64), np.empty(room, np.int64)
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
            # Rows may be tiny or huge: amounts are fractions of all GPUs, not of a row.
            size[j] = 0.0
            for k in range(types):
                size[j] = max(size[j], abs(matrix[k, j]))
            for k in range(types):
                matrix[k, j] /= max(size[j], 1e-300)
        if not invert(matrix, inverse):
            break
        # What the main options leave of each type, what the edges would take of it, and prices.
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
        # The amount of a main option must not be negative either.
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
            # Another option of the row becomes its main option; the edge is left to the old one.
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
                fixed[edge[j]] = mixed[other[j]] = True
        events = _edges(first, kind, value, use, key, fixed, mixed, price, left, at, rise, row_of, option_of)
        for j in range(types):
            if edge[j] >= 0:
                fixed[edge[j]] = mixed[other[j]] = False
        last = _turning_event(at, rise, events, least)
        if last < 0:
            break
        for event in range(events):
            if at[event] < at[last] or (at[event] == at[last] and event < last):
                key[row_of[event]] = option_of[event]
        edge[leaves], other[leaves] = row_of[last], option_of[last]
    share = np.zeros((rows, types))
    if not done:
        return False, share, price
    proof = _mix_options(first, kind, time, value, use, key, edge, other, part / size, price, share, proved)
    return proof, share, price * (unit / capacity)


@kernel
def _options(
    speed: Floats, worth: Floats, gpus: Floats, owed: Floats, capacity: Floats
) -> tuple[Ints, Ints, Floats, Floats, Floats]:
    """The options of all rows: start per row, two types each, time on them, value, use of GPUs."""
    rows, types = speed.shape
    room = rows * (2 * types + types * types // 4 + 1)
    first, kind, time = np.empty(rows + 1, np.int64), np.zeros((room, 2), np.int64), np.zeros((room, 2))
    value, use = np.empty(room), np.zeros((room, 2))
    at = 0
    for i in range(rows):
        first[i] = at
        need = min(owed[i], speed[i].max())
        if need <= 0.0:
            at += 1  # the option to stay idle
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
    fixed: Bools,
    mixed: Bools,
    price: Floats,
    step: Floats,
    at: Floats,
    rise: Floats,
    row_of: Ints,
    option_of: Ints,
) -> int:
    """Write the edges on the line from *price* along *step*; returns how many.

    For each edge: distance, increase of the slope, row, and its new option. Rows that are fixed to another edge
    (*fixed*, with their options in *mixed*) and prices that reach 0 end the line: their slope is infinite.
    """
    events = 0
    none = _ALIKE * np.abs(step).max()
    for k in range(len(price)):
        if step[k] < -none:
            at[events], rise[events], row_of[events], option_of[events] = (
                max(price[k], 0.0) / -step[k],
                np.inf,
                -1 - k,
                0,
            )
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
            if fixed[i]:
                bend = np.inf
            far = max(far, nearest)
            at[events], rise[events], row_of[events], option_of[events] = far, bend, i, a
            events += 1
            if fixed[i]:
                break
    return events


@kernel
def _turning_event(at: Floats, rise: Floats, events: int, slope: float) -> int:
    """The event at which a line with this initial *slope* stops falling; -1 if none."""
    order, low, high, behind = np.arange(events), 0, events, -1
    # Quickselect: partition around one event, then continue on the side where the slope changes sign.
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
    return behind  # >= 0 only because of rounding


@kernel
def _mix_options(
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
    """Write the shares; whether they fit and their value reaches the bound of these prices."""
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
