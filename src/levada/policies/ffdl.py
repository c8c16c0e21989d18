"""The sizes with the largest sum of speed-ups over the oldest jobs that fit.

Source: Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads", MASCOTS 2020, as VodaScheduler 0.2.2 has
it (`FfDLOptimizer`). Jobs are kept in order of submission as long as their minimums fit together; one that does not is
left out. Sizes g_j in [min, max] of the kept ones maximise sum of speedup_j(g_j) by dynamic programming

    P[j][k] = max over g of speedup_j(g) + P[j-1][k - g],  smallest g on ties

so later jobs keep the small share and the oldest takes the rest. Nothing is given that adds nothing.

Needs speed-up curves. Deviations: minimums (Voda ignores them and fails on its own check); as in Voda, batch sizes are
not tuned. Where the table would be too large to fill in time, GPUs go out one by one by gain: an equally good answer
where gains fall and steps are equal, else an approximation.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from levada.core.decision import Decision
from levada.core.types import Ints
from levada.kernels import choose
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types, by_type
from levada.policies.climb import Climb, survey
from levada.policies.fill import give, left_over
from levada.policies.gain import grow_by_gain
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.relocate import settled
from levada.policies.sizes import largest, smallest
from levada.policies.verdict import verdict
from levada.tables.snapshot import Snapshot

#: Most sizes of all jobs together.
SIZES = 5_000_000
#: Largest table, in cells: jobs x GPUs to share among them. Half a second and 200 MB.
CELLS = 50_000_000
#: Largest number of sums: all sizes of all jobs x GPUs to share among them.
SUMS = 1_000_000_000


class Ffdl:
    """The oldest jobs, at the sizes that are fastest in all."""

    name: ClassVar[str] = "ffdl"
    needs: ClassVar[Needs] = Needs.RATE
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS
    elastic: ClassVar[bool] = True

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
        """Minimums in order of submission, then the best way to share the rest among those that have one."""
        order, least = np.arange(len(snap)), smallest(snap)
        types = assign_types(snap, order, least, largest(snap), perf=perf)

        def largest_sum(types: Ints) -> Ints:
            count = give(snap, order, types, least)
            free = left_over(snap, types, count)
            can_grow = order[((count > 0) & (count < largest(snap)))[order]]
            for kind, rows in by_type(types, can_grow):
                count[rows] = _best(snap, perf, rows, types, count, int(free[kind]))
            return count

        types, count = settled(snap, perf, order, types, largest_sum)
        return verdict(snap, order, types, count), None


def _best(snap: Snapshot, perf: ThroughputModel, rows: Ints, types: Ints, count: Ints, free: int) -> Ints:
    """The best sizes of *rows*, all of one type and at their minimum, with what is free."""
    found = survey(snap, perf, rows, int(types[rows[0]]), count[rows], free, SIZES // len(rows))
    ladder = found.ladder
    favourite = _favourite(found)
    if int((favourite * found.cost).sum()) <= free and not ladder.more.any():
        return ladder.reached(favourite)
    # Workers that take nothing are no part of the problem: they have their favourite size.
    paying = found.cost > 0
    unit = int(np.gcd.reduce(found.cost[paying]))
    slack = min(free, int((ladder.length * found.cost).sum())) // unit
    if ladder.more.any() or slack * len(rows) > CELLS or slack * len(ladder.size) > SUMS:
        return grow_by_gain(snap, perf, rows, types, count)[rows]
    steps = choose.best_sum(found.speed, ladder.start, found.cost // unit, slack)
    return ladder.reached(np.where(paying, steps, favourite))


def _favourite(found: Climb) -> Ints:
    """Per job the first rung of its highest speed-up."""
    ladder = found.ladder
    highest = np.maximum.reduceat(found.speed, ladder.start[:-1])
    at_top = np.asarray(found.speed == highest[ladder.job]).nonzero()[0]
    first = at_top[ladder.job[at_top].searchsorted(np.arange(len(highest)))]
    return first - ladder.start[:-1]
