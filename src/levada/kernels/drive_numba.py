"""`kernels.drive`, compiled: plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

#: Blocks are slices, as in `state_numba`.
_BLOCK = 128
_TOTAL, _DONE, _RATE, _SINCE, _END = range(5)


@njit(cache=True)
def pause(jobs: Any, columns: Any, now: float) -> float:
    end = np.inf
    for c in columns:
        end = min(end, jobs[_END, c])
        jobs[_DONE, c] += jobs[_RATE, c] * max(now - jobs[_SINCE, c], 0.0)
        jobs[_RATE, c] = 0.0
        jobs[_END, c] = np.inf
    return end


@njit(cache=True)
def go(jobs: Any, columns: Any, now: float, rate: Any, since: Any) -> tuple[float, float]:
    before, after = pause(jobs, columns, now), np.inf
    for i in range(len(columns)):
        c = columns[i]
        jobs[_RATE, c] = rate[i]
        jobs[_SINCE, c] = since[i]
        left = jobs[_TOTAL, c] - jobs[_DONE, c]
        jobs[_END, c] = since[i] + left / rate[i] if rate[i] > 0 else np.inf
        after = min(after, jobs[_END, c])
    return before, after


@njit(cache=True)
def finish(jobs: Any, now: float) -> Any:
    end = jobs[_END]
    columns, at = np.empty(len(end), np.int64), 0
    # Few are done, if any: the others are passed over in blocks.
    for start in range(0, len(end), _BLOCK):
        block, done = end[start : start + _BLOCK], 0
        for place in range(len(block)):
            done += block[place] <= now
        if done > 0:
            for c in range(start, start + len(block)):
                if end[c] <= now:
                    columns[at] = c
                    at += 1
                    jobs[_DONE, c] = jobs[_TOTAL, c]
                    jobs[_RATE, c] = 0.0
                    jobs[_END, c] = np.inf
    return columns[:at].copy()


@njit(cache=True)
def steps(jobs: Any, columns: Any, now: float) -> Any:
    done = np.empty(len(columns))
    for i in range(len(columns)):
        c = columns[i]
        done[i] = jobs[_DONE, c] + jobs[_RATE, c] * max(now - jobs[_SINCE, c], 0.0)
    return done


@njit(cache=True)
def use(owner: Any, type_of: Any, seconds: float, used: Any, prices: Any) -> float:
    count = np.zeros(len(used))
    # Devices of a type mostly stand together: they are counted in blocks.
    for start in range(0, len(owner), _BLOCK):
        owners, types = owner[start : start + _BLOCK], type_of[start : start + _BLOCK]
        first, mixed, number = types[0], np.int64(0), 0
        for d in range(len(owners)):
            mixed |= types[d] ^ first
            number += owners[d] != -1
        if mixed == 0:
            count[first] += number
        else:
            for d in range(len(owners)):
                count[types[d]] += owners[d] != -1
    cost = 0.0
    for kind in range(len(used)):
        used[kind] += count[kind] * seconds
        cost += count[kind] * seconds * prices[kind]
    return cost


@njit(cache=True)
def node_counts(owner: Any, node_of: Any, part_owner: Any, part_node: Any, chosen: Any, slots: int) -> Any:
    row_of = np.full(slots, -1, np.int64)
    for i in range(len(chosen)):
        row_of[chosen[i]] = i
    found = 0
    for d in range(len(owner)):
        found += owner[d] >= 0 and row_of[owner[d]] >= 0
    for p in range(len(part_owner)):
        found += row_of[part_owner[p]] >= 0
    key = np.empty(found, np.int64)
    at = 0
    for d in range(len(owner)):
        if owner[d] >= 0 and row_of[owner[d]] >= 0:
            key[at] = row_of[owner[d]] << 32 | np.int64(node_of[d])
            at += 1
    for p in range(len(part_owner)):
        if row_of[part_owner[p]] >= 0:
            key[at] = row_of[part_owner[p]] << 32 | part_node[p]
            at += 1
    key.sort()
    count = np.zeros(len(chosen), np.int64)
    for i in range(found):
        if i == 0 or key[i] != key[i - 1]:
            count[key[i] >> 32] += 1
    return count
