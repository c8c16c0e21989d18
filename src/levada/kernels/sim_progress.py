"""Progress of simulated jobs: steps done, completion times, and GPUs in use.

The block `jobs` has a column for each job: total steps, steps done at the time `SINCE`, steps per second since then,
and the completion time. Unused columns are like those of a paused job.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels.registry import kernel

#: Rows of the block.
TOTAL, DONE, RATE, SINCE, END = range(5)
#: Length of a block; see `assignment`.
_BLOCK = 128
_TOTAL, _DONE, _RATE, _SINCE, _END = range(5)


@kernel
def pause(jobs: Floats, columns: Ints, now: float) -> float:
    """Stop the progress of these jobs; the earliest of their previous completion times."""
    end = np.inf
    for c in columns:
        end = min(end, jobs[_END, c])
        jobs[_DONE, c] += jobs[_RATE, c] * max(now - jobs[_SINCE, c], 0.0)
        jobs[_RATE, c] = 0.0
        jobs[_END, c] = np.inf
    return float(end)


@kernel
def set_rates(jobs: Floats, columns: Ints, now: float, rate: Floats, since: Floats) -> tuple[float, float]:
    """Set the rates of these jobs from *since* on; the earliest completion time before, and after."""
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
    """Complete the jobs that are done by now; their columns, ascending."""
    end = jobs[_END]
    columns, at = np.empty(len(end), np.int64), 0
    # Few are done: the others are skipped in blocks.
    for start in range(0, len(end), _BLOCK):
        block, done = end[start : start + _BLOCK], 0
        for position in range(len(block)):
            done += block[position] <= now
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
    """The steps that these jobs have done by now."""
    done = np.empty(len(columns))
    for i in range(len(columns)):
        c = columns[i]
        done[i] = jobs[_DONE, c] + jobs[_RATE, c] * max(now - jobs[_SINCE, c], 0.0)
    return done


@kernel
def add_use(owner: Ints, type_of: Ints, seconds: float, used: Floats, prices: Floats) -> float:
    """Add the GPU-seconds of *seconds* to *used*, by type; returns their cost at *prices*.

    Devices with an owner and shared devices are in use; owner -1 is free.
    """
    count = np.zeros(len(used))
    # Devices of a type are mostly adjacent: they are counted in blocks.
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
    """The number of nodes on which each *chosen* slot has whole devices or rows.

    *part_owner* and *part_node* are slot and node of each row. All slots are below *slots*; none is chosen twice.
    """
    row_of = np.full(slots, -1, np.int64)
    for i in range(len(chosen)):
        row_of[chosen[i]] = i
    number = 0
    for d in range(len(owner)):
        number += owner[d] >= 0 and row_of[owner[d]] >= 0
    for p in range(len(part_owner)):
        number += row_of[part_owner[p]] >= 0
    key = np.empty(number, np.int64)
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
    for i in range(number):
        if i == 0 or key[i] != key[i - 1]:
            count[key[i] >> 32] += 1
    return count
