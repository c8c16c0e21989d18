"""Jobs that are crowded on their type go to one that lies idle.

A job keeps its type; see `assign`. But when others have come to it, or machines of another type have joined, some jobs
share one type while another is idle. So when an elastic policy has given out sizes, a job that has less than it may use
goes to another type that it may use, if

- nobody who waits may use that type,
- it is at least twice as fast with what is free there. Where its speed is not known, it has twice the workers there,
  and the type does not come later in the list of types that its user gave,
- nobody else gets less by it when sizes are given out again.

The first in the policy's order goes first. Only jobs in view go: guards protect those that are young, may not be
preempted, or have no checkpoint yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from levada.core.jobtable import NOT_ALLOWED
from levada.core.snapshot import Snapshot
from levada.core.types import CPU_TYPE, Bools, Ints
from levada.perf.model import ThroughputModel
from levada.policies.fill import left_over
from levada.policies.sizes import largest, on_grid

#: What a change of type must be worth: it is a restart, and another job may come for the type.
FASTER = 2.0
#: Jobs that are thought of per decision; sizes are given out again for each.
MOST_TRIES = 8

#: Workers per job, given the type of each.
Rule: TypeAlias = Callable[[Ints], Ints]


def mixed(snap: Snapshot) -> bool:
    """Whether there is a choice of types at all."""
    return int(np.count_nonzero(snap.capacity[CPU_TYPE + 1 :] > 0)) > 1


def settled(snap: Snapshot, perf: ThroughputModel, order: Ints, types: Ints, rule: Rule) -> tuple[Ints, Ints]:
    """The type of each job and its workers under *rule*, after jobs went to types that lay idle."""
    count = rule(types)
    if not mixed(snap):
        return types, count
    tried = np.zeros(len(snap), bool)
    for _ in range(MOST_TRIES):
        if (found := _move(snap, perf, order, types, count, tried)) is None:
            break
        row, kind = found
        tried[row] = True
        elsewhere = types.copy()
        elsewhere[row] = kind
        sizes = rule(elsewhere)
        others = np.arange(len(snap)) != row
        one = np.array([row])
        worth = _worth(snap, perf, one, types[one], count[one], kind, sizes[one])
        if worth[0] and (sizes[others] >= count[others]).all():
            types, count = elsewhere, sizes
    return types, count


def _move(
    snap: Snapshot, perf: ThroughputModel, order: Ints, types: Ints, count: Ints, tried: Bools
) -> tuple[int, int] | None:
    """The first row in *order* that would be much faster on another type, with the one it likes best of those."""
    jobs, most, allowed, preference = snap.jobs, largest(snap), snap.allowed, snap.preference
    free = left_over(snap, types, count)
    crowded = (count > 0) & (count < most) & (jobs.milli > 0) & ~tried
    waits = (count == 0) & (types >= 0)
    best = np.full(len(snap), -1, np.int64)
    rank = np.full(len(snap), NOT_ALLOWED, np.int64)
    for kind in (free > 0).nonzero()[0].tolist():
        if kind == CPU_TYPE or (waits & allowed[:, kind]).any():
            continue
        fits = jobs.min * jobs.unit <= free[kind]
        rows = (crowded & fits & (types != kind) & (preference[:, kind] < rank)).nonzero()[0]
        size = on_grid(jobs, free[kind] // np.maximum(jobs.unit, 1))[rows]
        rows = rows[_worth(snap, perf, rows, types[rows], count[rows], kind, size)]
        best[rows], rank[rows] = kind, preference[rows, kind]
    movers = order[best.take(order) >= 0]
    return (int(movers[0]), int(best[movers[0]])) if len(movers) else None


def _worth(snap: Snapshot, perf: ThroughputModel, rows: Ints, types: Ints, count: Ints, kind: int, size: Ints) -> Bools:
    """Which of these jobs are faster enough with *size* workers of *kind* than with what they have."""
    jobs, preference = snap.jobs, snap.preference
    number = jobs.number[rows]
    as_named = (jobs.any_type[rows] > 0) | (preference[rows, kind] < preference[rows, types])
    more = (size >= FASTER * count) & as_named
    then = perf.rates(number, np.full(len(rows), kind, np.int64), size)
    faster = (then > 0) & (then >= FASTER * perf.rates(number, types, count))
    return np.asarray((size > 0) & np.where(perf.known(number), faster, more))
