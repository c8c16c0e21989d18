"""One round of Gavel's published mechanism: charge, update, choose, place.

A *combination* is a job, or two jobs that share devices. `combo` has the numbers of its members, the second one ALONE
for a single job; `members` the same as rows of jobs. `book` has RECEIVED, OWED and SHARE for each combination and type.
A *turn* is a combination in one round; `turns` has a column for each. Its devices are in `devices` up to STOP, after
those of the previous turn.
"""

from __future__ import annotations

import numpy as np

from levada.core import layout as c
from levada.core.types import Bools, Floats, Ints
from levada.kernels.registry import kernel
from levada.kernels.rounds import ascending, find

#: The second member of a single job.
ALONE = -1
#: Blocks of `book`: seconds received since the last reset, seconds owed from before, share of time.
RECEIVED, OWED, SHARE = range(3)
#: Rows of `turns`: row of the combination, its type, whether it makes a step on each of its GPUs, end of its devices.
COMBO, KIND, STEPS, STOP = range(4)
#: Rows of the decision.
TYPE, COUNT, REASON, EVIDENCE = range(4)
_RUNS, _CAPACITY, _WHOLE = int(c.RUNS), int(c.CAPACITY), int(c.WHOLE)
#: Priority of a share of 1 that has received nothing yet.
_UNSERVED = 1e9
#: Assumed duration on its fastest type of a job of unknown length.
_UNKNOWN_LENGTH_S = 3600.0


#: The jobs in view, by row: steps/s by job and type; of pairs by combination, type and member; the first block of
#: `view.jobs`; GPUs, the fastest rate, and slots. Plain tuples: named ones take numba longer to type.
Jobs = tuple[Floats, Floats, Ints, Floats, Floats, Ints]
#: Account of the combinations: members, book, seconds received in total by type, and known.
Ledger = tuple[Ints, Floats, Floats, Bools]
#: Turns of the previous round, the current row of each one's combination, and devices.
LastRound = tuple[Ints, Ints, Ints]


@kernel
def charge(
    book: Floats,
    total: Floats,
    combo: Ints,
    turns: Ints,
    finish: Floats,
    start: float,
    before: Ints,
    number: Ints,
) -> tuple[Floats, Floats, bool, bool]:
    """Charge each turn from *start* to its *finish*; the new book and total.

    Returns also whether any turn made no step (and is not charged), and whether the job numbers equal *before*. The
    latest turn comes first, ties by number: the order matters for sums of floats.
    """
    book, total = book.copy(), total.copy()
    first, failed = np.empty(len(finish), np.int64), False
    for t in range(len(finish)):
        first[t] = combo[turns[0, t], 0]
    order = np.argsort(first, kind="mergesort")
    for t in order[np.argsort(-finish[order], kind="mergesort")]:
        if turns[2, t] > 0:
            book[0, turns[0, t], turns[1, t]] += finish[t] - start
            total[turns[1, t]] += finish[t] - start
        else:
            failed = True
    same = len(before) == len(number)
    for i in range(len(number) if same else 0):
        same &= before[i] == number[i]
    return book, total, failed, bool(same)


@kernel
def update_combinations(
    combo: Ints, book: Floats, known: Bools, turns: Ints, number: Ints, scale: Floats, packs: bool, half_s: float
) -> tuple[Ints, Floats, Bools, Ints, Ints, bool, bool]:
    """Drop combinations of ended jobs; add new jobs, alone and, if *packs*, with each of equal scale.

    Returns combo, book, known, members, the new row of each turn's combination (-1 = none), whether any was dropped,
    and whether any was added. A new job starts with *half_s* seconds received.
    """
    order = ascending(number)
    rows = np.empty(combo.shape, np.int64)
    alone = np.zeros(len(number), np.bool_)
    moved = np.full(len(combo), -1, np.int64)
    singles, many = np.empty(len(number), np.int64), 0
    stay = 0
    for at in range(len(combo)):
        for member in range(2):
            rows[at, member] = ALONE
            if combo[at, member] != ALONE:
                position = find(number, order, combo[at, member])
                rows[at, member] = order[position] if position >= 0 else -2
        if rows[at, 0] >= 0 and rows[at, 1] >= ALONE:
            moved[at] = stay
            stay += 1
            if rows[at, 1] == ALONE:
                alone[rows[at, 0]] = True
                singles[many] = rows[at, 0]
                many += 1
    old, size = many, stay
    for row in order:
        if not alone[row]:
            if packs:
                for other in singles[:many]:
                    size += scale[other] == scale[row]
            size += 1
            singles[many] = row
            many += 1
    where = np.empty(turns.shape[1], np.int64)
    for t in range(len(where)):
        where[t] = moved[turns[0, t]]
    new_combo, members = np.empty((size, 2), np.int64), np.empty((size, 2), np.int64)
    new_book, new_known = np.zeros((3, size, book.shape[2])), np.zeros(size, np.bool_)
    for at in range(len(combo)):
        to = moved[at]
        if to >= 0:
            new_combo[to], members[to] = combo[at], rows[at]
            new_book[:, to], new_known[to] = book[:, at], known[at]
    at = stay
    for i in range(old, many):
        row = singles[i]
        new_combo[at, 0], members[at, 0] = number[row], row
        new_combo[at, 1] = members[at, 1] = ALONE
        new_book[0, at] = half_s
        at += 1
        if packs:
            for other in singles[:i]:
                if scale[other] == scale[row]:
                    new_combo[at, 0], new_combo[at, 1] = number[other], number[row]
                    members[at, 0], members[at, 1] = other, row
                    at += 1
    return new_combo, new_book, new_known, members, where, stay < len(combo), many > old


@kernel
def next_round(
    jobs: Jobs,
    ledger: Ledger,
    last: LastRound,
    ints: Ints,
    floats: Floats,
    owner: Ints,
    cluster: Ints,
    capacity: Floats,
    order: Ints,
    global_queue: bool,
    strict: bool,
    now: float,
    round_s: float,
) -> tuple[Ints, Ints, Ints, Ints, Ints, Floats]:
    """The next round: decision, places and rows as in `_build_decision`; turns, devices and finish times.

    *ints* and *floats* are the blocks of the table, *cluster* is `Allocatable.devices`, *capacity* and *order* are the
    GPUs of each type and the order of types.
    """
    rate, together, block, scale, best, slots = jobs
    members, book, total, known = ledger
    rates = _rates(members, rate, together)
    chosen, kinds = _choose(rates, members, book, total, known, scale, capacity, order, global_queue, strict)
    turns, devices = _place(
        chosen, kinds, members, known, scale, order, last, cluster[c.TYPE_OF], cluster[c.MILLI_LEFT]
    )
    finish = _progress(turns, rates, members, floats, slots, best, now, round_s)
    decision, places, placed = _build_decision(
        turns, devices, members, block[1], cluster[c.NODE_OF], ints, slots, owner
    )
    return decision, places, placed, turns, devices, finish


@kernel
def _rates(members: Ints, rate: Floats, together: Floats) -> Floats:
    """(combinations, types, 2): steps/s of both members; of a single job its rate twice.

    *together* has a row for each pair, in their order.
    """
    rates = np.empty((len(members), rate.shape[1], 2))
    pair = 0
    for at in range(len(members)):
        if members[at, 1] == ALONE:
            rates[at, :, 0] = rates[at, :, 1] = rate[members[at, 0]]
        else:
            rates[at] = together[pair]
            pair += 1
    return rates


@kernel
def _choose(
    rates: Floats,
    members: Ints,
    book: Floats,
    total: Floats,
    known: Bools,
    scale: Floats,
    capacity: Floats,
    order: Ints,
    global_queue: bool,
    strict: bool,
) -> tuple[Ints, Ints]:
    """The combinations that run, as rows in the order in which they are taken, and their types.

    Type by type in this *order* (or in one *global_queue*), they are taken by descending priority, then by time owed,
    then by share, while GPUs are left.
    """
    size, many = len(members) * len(order), 0
    rows, kinds, keys = np.empty(size, np.int64), np.empty(size, np.int64), np.empty((3, size))
    starts = np.zeros(len(order) + 1, np.int64)
    for place in range(len(order)):
        kind = order[place]
        for at in range(len(members)):
            if not (rates[at, kind, 0] > 0.0 and rates[at, kind, 1] > 0.0):
                continue
            share, priority = book[2, at, kind], 0.0
            if share > 0.0 and known[at]:
                part = book[0, at, kind] / total[kind] if total[kind] > 0.0 else 0.0
                priority = share / part if part > 0.0 else share * _UNSERVED
            if strict and priority <= 0.0:
                continue
            rows[many], kinds[many] = at, kind
            keys[0, many], keys[1, many], keys[2, many] = -share, -book[1, at, kind], -priority
            many += 1
        starts[place + 1] = many
    if global_queue:
        starts = np.array([0, many])
    left, taken = capacity.copy(), np.zeros(len(scale), np.bool_)
    chosen, chosen_kind, number = np.empty(len(members), np.int64), np.empty(len(members), np.int64), 0
    for part in range(len(starts) - 1):
        start, stop = starts[part], starts[part + 1]
        # Sorts are stable, so the last key is the most significant.
        queue = np.arange(start, stop)
        for key in range(3):
            queue = queue[np.argsort(keys[key][queue], kind="mergesort")]
        for i in queue:
            at, kind = rows[i], kinds[i]
            a, b = members[at, 0], members[at, 1]
            if left[kind] == 0.0 or taken[a] or (b != ALONE and taken[b]) or scale[a] > left[kind]:
                continue
            left[kind] -= scale[a]
            taken[a] = True
            if b != ALONE:
                taken[b] = True
            chosen[number], chosen_kind[number] = at, kind
            number += 1
    return chosen[:number], chosen_kind[:number]


@kernel
def _place(
    chosen: Ints,
    kinds: Ints,
    members: Ints,
    known: Bools,
    scale: Floats,
    order: Ints,
    before: LastRound,
    type_of: Ints,
    left: Ints,
) -> tuple[Ints, Ints]:
    """Turns and devices of all *chosen* combinations; raises LookupError if devices are missing.

    Type by type, larger ones come first. Among equals, those that keep the devices of the round *before* come first;
    the others take the next free devices. *left* is what others leave of each device. A job without a known share was
    counted, but gets nothing.
    """
    turns, where, devices = before
    last = np.full(len(members), -1, np.int64)
    for t in range(len(where)):
        if where[t] >= 0:
            last[where[t]] = t
    new, number = np.zeros((4, len(chosen)), np.int64), 0
    # A turn may keep more devices than its scale, or ones out of service, but none twice.
    new_devices, end = np.empty(len(type_of) + len(devices), np.int64), 0
    used, done = np.zeros(len(type_of) + 1, np.bool_), np.zeros(len(chosen), np.bool_)
    for kind in order:
        following = 0
        while True:
            size = -1
            for i in range(len(chosen)):
                if kinds[i] == kind and not done[i]:
                    size = max(size, int(scale[members[chosen[i], 0]]))
            if size < 0:
                break
            for keeps in (True, False):
                for i in range(len(chosen)):
                    at = chosen[i]
                    if kinds[i] != kind or done[i] or int(scale[members[at, 0]]) != size:
                        continue
                    if keeps:
                        t = last[at]
                        if t < 0 or turns[1, t] != kind:
                            continue
                        start = turns[3, t - 1] if t > 0 else 0
                        free = True
                        for device in devices[start : turns[3, t]]:
                            free &= device < len(type_of) and not used[device]
                        if not free:
                            continue
                        for device in devices[start : turns[3, t]]:
                            used[device] = True
                            new_devices[end] = device
                            end += 1
                    else:
                        done[i] = True
                        if not known[at]:
                            continue
                        for _ in range(size):
                            while following < len(type_of) and (
                                type_of[following] != kind or left[following] != _WHOLE or used[following]
                            ):
                                following += 1
                            if following == len(type_of):
                                raise LookupError("fewer free devices than capacity")
                            used[following] = True
                            new_devices[end] = following
                            end += 1
                    done[i] = True
                    new[0, number], new[1, number], new[3, number] = at, kind, end
                    number += 1
    return new[:, :number].copy(), new_devices[:end].copy()


@kernel
def _progress(
    turns: Ints,
    rates: Floats,
    members: Ints,
    floats: Floats,
    slots: Ints,
    best: Floats,
    now: float,
    round_s: float,
) -> Floats:
    """The finish time of each turn; sets its STEPS.

    A job makes only whole steps, or what is left; the round of two jobs lasts until the slower one finishes.
    """
    finish = np.empty(turns.shape[1])
    for t in range(len(finish)):
        at, kind = turns[0, t], turns[1, t]
        gpus = turns[3, t] - (turns[3, t - 1] if t > 0 else 0)
        finish[t], turns[2, t] = now, 1
        for member in range(2):
            row = members[at, member]
            if row == ALONE:
                continue
            left = floats[c.STEPS, slots[row]] - floats[c.STEPS_DONE, slots[row]]
            if np.isnan(left):
                left = best[row] * _UNKNOWN_LENGTH_S
            steps = round_steps(rates[at, kind, member], round_s, max(left, 0.0))
            finish[t] = max(finish[t], now + steps / rates[at, kind, member])
            if not steps_everywhere(steps, gpus):
                turns[2, t] = 0
    return finish


@kernel
def round_steps(rate: float, round_s: float, left: float) -> float:
    """The steps of one round: whole ones, or what is left."""
    return min(float(int(rate * round_s)), left)


@kernel
def steps_everywhere(steps: float, gpus: int) -> bool:
    """Whether every GPU gets a step when they are divided evenly; the last one takes the rest."""
    return int(steps / gpus) > 0 if gpus > 1 else steps > 0.0


@kernel
def _build_decision(
    turns: Ints, devices: Ints, members: Ints, size: Ints, node_of: Ints, ints: Ints, slots: Ints, owner: Ints
) -> tuple[Ints, Ints, Ints]:
    """The decision for each job; places of jobs that move, as in a decision; and their rows.

    *owner* is that of the target: a single job whose target is already these devices keeps its places.
    """
    decision = np.zeros((4, len(size)), np.int64)
    decision[0], decision[2] = -1, _CAPACITY
    places, count = np.zeros((6, 2 * len(devices)), np.int64), 0
    placed = np.zeros(len(size), np.bool_)
    start = 0
    for t in range(turns.shape[1]):
        stop, pair = turns[3, t], members[turns[0, t]]
        for member in range(2):
            row = pair[member]
            if row == ALONE:
                continue
            slot = slots[row]
            if size[row] > 0:
                decision[0, row], decision[1, row], decision[2, row] = turns[1, t], size[row], _RUNS
            stays = pair[1] == ALONE and ints[c.TYPE, slot] == turns[1, t] and ints[c.COUNT, slot] == size[row]
            for at in range(start, stop):
                stays &= owner[devices[at]] == slot
            if stays:
                continue
            placed[row] = True
            per_worker = max((stop - start) // max(size[row], 1), 1)
            for at in range(start, stop):
                places[0, count], places[1, count] = row, (at - start) // per_worker
                places[2, count], places[3, count] = node_of[devices[at]], devices[at]
                places[4, count] = _WHOLE if pair[1] == ALONE else _WHOLE // 2
                count += 1
        start = stop
    return decision, places[:, :count].copy(), placed.nonzero()[0]
