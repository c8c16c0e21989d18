"""Rounds of Gavel's published simulator: jobs that run, and ends of rounds.

A *turn* is one job, or two on the same devices; `turns` has a column for each, by the number of its first member. Its
devices are in `devices` up to STOP, after those of the previous turn. `work` has a column for each job, by number.
"""

from __future__ import annotations

import numpy as np

from levada.compat.gavel.kernels.published_round import round_steps, steps_everywhere
from levada.core.types import Floats, Ints
from levada.kernels.registry import kernel

#: Rows of `turns`: numbers of the members, the second one ALONE for a single job; type, workers, end of devices.
FIRST, SECOND, TYPE, SIZE, STOP = range(5)
ALONE = -1
#: Rows of `work`: all steps, steps left (nan = ended), consecutive rounds without progress.
STEPS, LEFT, FAILURES = range(3)
_HOUR_S = 3600.0


@kernel
def current_turns(
    owner: Ints, rows: Ints, type_of: Ints, number: Ints, desired: Ints, observed: Ints
) -> tuple[Ints, Ints]:
    """The turns of the jobs that are observed to run, and their devices.

    *owner* and *rows* are those of an assignment; the last three are by slot. Two jobs share all of their devices or
    none.
    """
    slots, shared = len(number), rows.shape[1]
    gpus, lowest = np.zeros(slots, np.int64), np.full(slots, len(owner), np.int64)
    for device in range(len(owner)):
        s = owner[device]
        if s >= 0 and observed[s] > 0:
            gpus[s] += 1
            lowest[s] = min(lowest[s], device)
    for row in range(shared):
        s, device = rows[0, row], rows[3, row]
        if device >= 0 and observed[s] > 0:
            gpus[s] += 1
            lowest[s] = min(lowest[s], device)
    # The devices of a turn are those of its first slot.
    holder, partner = np.full(len(owner), -1, np.int64), np.full(slots, ALONE, np.int64)
    first_slots, many = np.empty(slots, np.int64), 0
    for s in range(slots):
        if gpus[s] == 0:
            continue
        if holder[lowest[s]] >= 0:
            partner[holder[lowest[s]]] = number[s]
        else:
            holder[lowest[s]] = s
            first_slots[many] = s
            many += 1
    first = np.empty(many, np.int64)
    for t in range(many):
        s = first_slots[t]
        first[t] = number[s] if partner[s] == ALONE else min(number[s], partner[s])
    turns, end = np.empty((5, many), np.int64), 0
    following = np.full(slots, -1, np.int64)
    order = np.argsort(first, kind="mergesort")
    for t in range(many):
        s = first_slots[order[t]]
        turns[0, t], turns[1, t] = first[order[t]], ALONE
        if partner[s] != ALONE:
            turns[1, t] = max(number[s], partner[s])
        turns[2, t], turns[3, t] = type_of[lowest[s]], desired[s]
        following[s] = end
        end += gpus[s]
        turns[4, t] = end
    devices = np.empty(end, np.int64)
    for device in range(len(owner)):
        s = owner[device]
        if s >= 0 and following[s] >= 0:
            devices[following[s]] = device
            following[s] += 1
    if shared > 0:
        for row in range(shared):
            s, device = rows[0, row], rows[3, row]
            if device >= 0 and following[s] >= 0:
                devices[following[s]] = device
                following[s] += 1
        for t in range(many):
            start = turns[4, t - 1] if t > 0 else 0
            devices[start : turns[4, t]] = np.sort(devices[start : turns[4, t]])
    return turns, devices


@kernel
def leases(before: Ints, old_devices: Ints, turns: Ints, devices: Ints, work: Floats) -> tuple[int, int]:
    """The number of turns *before* with an unfinished job, and how many of these keep their devices."""
    chances, kept_devices, at = 0, 0, 0
    for t in range(before.shape[1]):
        a, b = before[0, t], before[1, t]
        if np.isnan(work[1, a]) and (b == ALONE or np.isnan(work[1, b])):
            continue
        chances += 1
        while at < turns.shape[1] and turns[0, at] < a:
            at += 1
        if at == turns.shape[1] or turns[0, at] != a or turns[1, at] != b:
            continue
        start, now = before[4, t - 1] if t > 0 else 0, turns[4, at - 1] if at > 0 else 0
        same = before[4, t] - start == turns[4, at] - now
        if same:
            for i in range(before[4, t] - start):
                same &= old_devices[start + i] == devices[now + i]
        kept_devices += same
    return chances, int(kept_devices)


@kernel
def finish(
    turns: Ints,
    rates: Floats,
    work: Floats,
    used: Floats,
    prices: Floats,
    now: float,
    charged_to: float,
    round_s: float,
    cost: float,
    most_failures: int,
) -> tuple[float, float, Ints, Floats, Ints, Ints, Floats]:
    """The end of a round; total *cost*; finished jobs and times, dropped jobs, continuing jobs, their steps.

    *rates* is by member and turn, *used* and *prices* are by type. Changes *work*, and *used* (nan for a type that was
    never used). Two jobs that were expected to fit on one GPU, but do not, lose the round.
    """
    end, count = now, 2 * turns.shape[1]
    done, done_at, finished = np.empty(count, np.int64), np.empty(count), 0
    failed, failures = np.empty(count, np.int64), 0
    steps = np.zeros(2)
    for t in range(turns.shape[1]):
        gpus = turns[4, t] - (turns[4, t - 1] if t > 0 else 0)
        members = 1 if turns[1, t] == ALONE else 2
        fits, moves, lasts = True, True, now
        for m in range(members):
            fits &= rates[m, t] > 0.0
        for m in range(members):
            steps[m] = round_steps(rates[m, t], round_s, work[1, turns[m, t]])
            moves &= steps_everywhere(steps[m], gpus)
            lasts = max(lasts, now + (steps[m] / rates[m, t] if fits else round_s))
        end = max(end, lasts)
        if not fits or not moves:
            if members == 1:
                failed[failures] = turns[0, t]
                failures += 1
            continue
        kind, seconds = turns[2, t], (lasts - charged_to) * gpus
        used[kind] = seconds if np.isnan(used[kind]) else used[kind] + seconds
        cost += prices[kind] * seconds / _HOUR_S * members
        for m in range(members):
            number = turns[m, t]
            work[2, number] = 0.0
            work[1, number] -= steps[m]
            if work[1, number] <= 0.0:
                work[1, number] = np.nan
                done[finished], done_at[finished] = number, lasts
                finished += 1
    order = np.argsort(done[:finished], kind="mergesort")
    order = order[np.argsort(done_at[:finished][order], kind="mergesort")]
    dropped, drops = np.empty(failures, np.int64), 0
    for number in failed[:failures]:
        work[2, number] += 1.0
        if work[2, number] >= most_failures:
            work[1, number] = np.nan
            dropped[drops] = number
            drops += 1
    continuing, steps_done, goes = np.empty(count, np.int64), np.empty(count), 0
    for t in range(turns.shape[1]):
        for m in range(2):
            number = turns[m, t]
            if number != ALONE and not np.isnan(work[1, number]):
                continuing[goes], steps_done[goes] = number, work[0, number] - work[1, number]
                goes += 1
    return (
        float(end),
        float(cost),
        done[order],
        done_at[order],
        dropped[:drops],
        continuing[:goes],
        steps_done[:goes],
    )
