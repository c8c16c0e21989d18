"""What a simulation asks at every turn: how far jobs are, when they will be done, and which GPUs are in use.

Progress stands in one block, `jobs`, with a column for each job: its whole work, what it had done at the time `SINCE`,
its steps per second from then on, and when it will be done. Columns of nobody are as those of a job that pauses.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels.registry import kernel

#: Rows of the block.
TOTAL, DONE, RATE, SINCE, END = range(5)
#: Blocks are slices, as in `assignment`.
_BLOCK = 128
_TOTAL, _DONE, _RATE, _SINCE, _END = range(5)


@kernel
def pause(jobs: Floats, columns: Ints, now: float) -> float:
    """The jobs in these columns make no progress from now on; when the first of them would have been done."""
    end = np.inf
    for c in columns:
        end = min(end, jobs[_END, c])
        jobs[_DONE, c] += jobs[_RATE, c] * max(now - jobs[_SINCE, c], 0.0)
        jobs[_RATE, c] = 0.0
        jobs[_END, c] = np.inf
    return float(end)


@kernel
def go(jobs: Floats, columns: Ints, now: float, rate: Floats, since: Floats) -> tuple[float, float]:
    """The jobs in these columns pause now, if they do not, and make so many steps per second from then on.

    When the first of them would have been done, and when it will be.
    """
    before, after = pause(jobs, columns, now), np.inf
    for i in range(len(columns)):
        c = columns[i]
        jobs[_RATE, c] = rate[i]
        jobs[_SINCE, c] = since[i]
        left = jobs[_TOTAL, c] - jobs[_DONE, c]
        jobs[_END, c] = since[i] + left / rate[i] if rate[i] > 0 else np.inf
        after = min(after, jobs[_END, c])
    return float(before), float(after)


@kernel
def finish(jobs: Floats, now: float) -> Ints:
    """The columns of the jobs that are done by now, ascending; from now on they pause with all their work done."""
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


@kernel
def steps(jobs: Floats, columns: Ints, now: float) -> Floats:
    """How far the jobs in these columns are."""
    done = np.empty(len(columns))
    for i in range(len(columns)):
        c = columns[i]
        done[i] = jobs[_DONE, c] + jobs[_RATE, c] * max(now - jobs[_SINCE, c], 0.0)
    return done


@kernel
def use(owner: Ints, type_of: Ints, seconds: float, used: Floats, prices: Floats) -> float:
    """Adds to *used* per type the GPU-seconds of so many seconds, and tells what they cost at these *prices*.

    Devices that have an owner or are shared are in use; nobody's have -1.
    """
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
    return float(cost)


@kernel
def node_counts(owner: Ints, node_of: Ints, part_owner: Ints, part_node: Ints, chosen: Ints, slots: int) -> Ints:
    """On how many nodes each of the *chosen* slots has whole devices, or other places (*part_owner* is on *part_node*).

    All slots are below *slots*; none is chosen twice.
    """
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
