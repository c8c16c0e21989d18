"""`kernels.drive` in numpy."""

from __future__ import annotations

import numpy as np

from levada.kernels.arrays import Floats, Ints

_TOTAL, _DONE, _RATE, _SINCE, _END = range(5)


def pause(jobs: Floats, columns: Ints, now: float) -> float:
    end = float(jobs[_END].take(columns).min(initial=np.inf))
    # A row first and then its columns: numpy takes much longer over both at once.
    jobs[_DONE][columns] = steps(jobs, columns, now)
    jobs[_RATE][columns] = 0.0
    jobs[_END][columns] = np.inf
    return end


def go(jobs: Floats, columns: Ints, now: float, rate: Floats, since: Floats) -> tuple[float, float]:
    before = pause(jobs, columns, now)
    jobs[_RATE][columns] = rate
    jobs[_SINCE][columns] = since
    left = jobs[_TOTAL].take(columns) - jobs[_DONE].take(columns)
    runs = rate > 0
    # Infinitely much that is left takes for ever at any rate, and anything at hardly any.
    with np.errstate(over="ignore"):
        ends = np.where(runs, since + left / np.where(runs, rate, 1.0), np.inf)
    jobs[_END][columns] = ends
    return before, float(ends.min(initial=np.inf))


def finish(jobs: Floats, now: float) -> Ints:
    columns = (jobs[_END] <= now).nonzero()[0]
    jobs[_DONE][columns] = jobs[_TOTAL].take(columns)
    jobs[_RATE][columns] = 0.0
    jobs[_END][columns] = np.inf
    return columns


def steps(jobs: Floats, columns: Ints, now: float) -> Floats:
    passed = np.maximum(now - jobs[_SINCE].take(columns), 0.0)
    return jobs[_DONE].take(columns) + jobs[_RATE].take(columns) * passed


def use(owner: Ints, type_of: Ints, seconds: float, used: Floats, prices: Floats) -> float:
    more = np.bincount(type_of[owner != -1], minlength=len(used)).astype(np.float64) * seconds
    used += more
    # One after the other, as a loop adds them up.
    return float(sum((more * prices).tolist(), 0.0))


def node_counts(owner: Ints, node_of: Ints, part_owner: Ints, part_node: Ints, chosen: Ints, slots: int) -> Ints:
    # Owners below zero, which are no slots, look up the last two places.
    row_of = np.full(slots + 2, -1, np.int64)
    row_of[chosen] = np.arange(len(chosen))
    row = row_of.take(owner, mode="wrap")
    devices = (row >= 0).nonzero()[0]
    row, node = row.take(devices), node_of.take(devices)
    if len(part_owner):
        more = row_of[part_owner]
        row, node = np.append(row, more[more >= 0]), np.append(node, part_node[more >= 0])
    nodes = len(node) and int(node.max()) + 1
    keys = np.unique(row * nodes + node)
    return np.bincount(keys // max(nodes, 1), minlength=len(chosen))
