"""Maximise the sum of speed-ups over the oldest jobs that fit together.

Source: Saxena et al., "Effective Elastic Scaling of Deep Learning Workloads", MASCOTS 2020, as in VodaScheduler 0.2.2
(`FfDLOptimizer`). Jobs are admitted in order of submission while their minimums fit together; a job that does not fit
is skipped. The sizes g_j in [min, max] of the admitted jobs maximise the sum of speedup_j(g_j) by dynamic programming:

    P[j][k] = max over g of speedup_j(g) + P[j-1][k - g],  smallest g on ties

So later jobs have the small sizes and the oldest takes the rest. A GPU that adds no speed-up stays free.

Needs speed-up curves. Deviation: minimums (Voda ignores them and fails its own check). As in Voda, batch sizes are not
tuned. If the table is too large to fill in time, GPUs are assigned one by one by gain: also optimal with falling gains
and equal steps, otherwise an approximation.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from levada.core.decision import Decision
from levada.core.types import Ints
from levada.kernels import greedy
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types, by_type
from levada.policies.build_decision import build_decision
from levada.policies.fill import fill_in_order, free_after
from levada.policies.greedy_growth import GrowthTable, grow_by_gain, growth_table
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.relocate import move_to_idle_types
from levada.policies.sizes import largest, smallest
from levada.tables.snapshot import Snapshot

#: The most sizes of all jobs together.
SIZES = 5_000_000
#: The largest table, in cells (jobs x shared GPUs): 0.5 s and 200 MB.
CELLS = 50_000_000
#: The most sums (all sizes of all jobs x shared GPUs).
SUMS = 1_000_000_000


class Ffdl:
    """The oldest jobs, at the sizes with the largest sum of speed-ups."""

    name: ClassVar[str] = "ffdl"
    needs: ClassVar[Needs] = Needs.RATE
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS
    elastic: ClassVar[bool] = True

    def initial(self, seed: int) -> None:
        """Stateless."""

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
        """Minimums in order of submission, then the best sizes for the admitted jobs."""
        order, least = np.arange(len(snap)), smallest(snap)
        types = assign_types(snap, order, least, largest(snap), perf=perf)

        def largest_sum(types: Ints) -> Ints:
            count = fill_in_order(snap, order, types, least)
            free = free_after(snap, types, count)
            can_grow = order[((count > 0) & (count < largest(snap)))[order]]
            for kind, rows in by_type(types, can_grow):
                count[rows] = _best(snap, perf, rows, types, count, int(free[kind]))
            return count

        types, count = move_to_idle_types(snap, perf, order, types, largest_sum)
        return build_decision(snap, order, types, count), None


def _best(snap: Snapshot, perf: ThroughputModel, rows: Ints, types: Ints, count: Ints, free: int) -> Ints:
    """The best sizes of *rows* (all of one type, at their minimum) with *free*."""
    table = growth_table(snap, perf, rows, int(types[rows[0]]), count[rows], free, SIZES // len(rows))
    sizes = table.sizes
    fastest = _fastest(table)
    if int((fastest * table.cost).sum()) <= free and not sizes.more.any():
        return sizes.reached(fastest)
    # Workers that take no capacity do not compete: they get their fastest size.
    paying = table.cost > 0
    unit = int(np.gcd.reduce(table.cost[paying]))
    slack = min(free, int((sizes.length * table.cost).sum())) // unit
    if sizes.more.any() or slack * len(rows) > CELLS or slack * len(sizes.size) > SUMS:
        return grow_by_gain(snap, perf, rows, types, count)[rows]
    steps = greedy.best_sum(table.speed, sizes.start, table.cost // unit, slack)
    return sizes.reached(np.where(paying, steps, fastest))


def _fastest(table: GrowthTable) -> Ints:
    """The index of the highest speed-up of each job; the first on ties."""
    sizes = table.sizes
    highest = np.maximum.reduceat(table.speed, sizes.start[:-1])
    at_top = np.asarray(table.speed == highest[sizes.job]).nonzero()[0]
    first = at_top[sizes.job[at_top].searchsorted(np.arange(len(highest)))]
    return first - sizes.start[:-1]
