"""Assign GPUs one by one to shorten the average completion time most (AFS-L).

Source: Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning", NSDI 2021 (AFS-L). For each grant, the
policy scans the jobs in order of submission and compares the winner so far with the next job:

    both have nothing       the shorter one wins (the later one on ties)
    else                    s is the one that ends sooner at its current size (the later one on ties), l the other:
                            l wins if (s_l' - s_l) / s_l' > (s_s' - s_s) / s_s, else s

with s the speed-up now, s' after the grant, and time to the end = serial seconds left / s, infinite without workers.
The rule is not transitive, so the order of the scan matters. Every GPU is assigned, even without gain.

Needs the remaining work and speed-up curves. Deviations: the first grant is the minimum; a job whose next grant no
longer fits leaves the comparison; gains of unequal steps are compared per GPU; each job's length uses its own share
(Voda uses the other job's).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from levada.core.decision import Decision
from levada.core.types import WHOLE, Ints
from levada.kernels import greedy
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types
from levada.policies.build_decision import build_decision, unknown_length_reasons
from levada.policies.greedy_growth import GrowthTable, grow_by_rule
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.relocate import move_to_idle_types
from levada.policies.remaining_time import remaining
from levada.policies.sizes import largest, smallest
from levada.tables.snapshot import Snapshot


class AfsL:
    """Every GPU goes to the winner of a pairwise comparison of lengths and gains."""

    name: ClassVar[str] = "afs-l"
    needs: ClassVar[Needs] = Needs.RATE | Needs.REMAINING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS
    elastic: ClassVar[bool] = True

    def initial(self, seed: int) -> None:
        """Stateless."""

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
        """Assign all capacity grant by grant; jobs of unknown length count as infinite."""
        jobs = snap.jobs
        order = np.arange(len(snap))
        types = assign_types(snap, order, smallest(snap), largest(snap), perf=perf)
        gpus = jobs.step * np.maximum(jobs.unit, 1) / WHOLE

        def sizes(types: Ints) -> Ints:
            left = remaining(snap, perf, types)
            length = np.where(np.isnan(left), np.inf, left)

            def pick(t: GrowthTable, free: int) -> Ints:
                rows, sizes = t.rows, t.sizes
                return greedy.pick_winners(
                    t.first, t.cost, t.waits, length[rows], gpus[rows], t.speed, sizes.start, free, sizes.more
                )

            return grow_by_rule(snap, perf, order, types, np.zeros(len(snap), np.int64), pick)

        types, count = move_to_idle_types(snap, perf, order, types, sizes)
        left = remaining(snap, perf, types)
        return build_decision(snap, order, types, count, unknown_length_reasons(snap, types, count, left)), None
