"""GPU by GPU to the job where it shortens the average completion time most.

Source: Hwang et al., "Elastic Resource Sharing for Distributed Deep Learning", NSDI 2021 (AFS-L). Each grant is won by
scanning the jobs in order of submission, the champion so far against the next one:

    both have nothing       the shorter one wins (the later one, if equal)
    else                    s is the one that ends sooner with what it has (the later one, if equal), l the other:
                            l wins if (s_l' - s_l) / s_l' > (s_s' - s_s) / s_s, else s

with s the speed-up now, s' after the grant, and time to the end = serial seconds left / s, endless with nothing. The
rule is not transitive, so the order of the scan counts. There is no stop: every GPU is handed out, gain or not.

Needs the work that is left and speed-up curves. Deviations: the first grant is the minimum, and a job whose next grant
does not fit any more leaves the contest at once; gains of unequal steps are compared per GPU; each job's own share
counts in its length (Voda takes the other's).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from levada.core.decision import Decision
from levada.core.types import WHOLE, Ints
from levada.kernels import choose
from levada.perf.model import ThroughputModel
from levada.policies.assign import assign_types
from levada.policies.climb import Climb, climb
from levada.policies.length import remaining
from levada.policies.protocol import ALL_GUARDS, ON_EVENTS, Cadence, Guards, Needs
from levada.policies.relocate import settled
from levada.policies.sizes import largest, smallest
from levada.policies.verdict import because_unknown, verdict
from levada.tables.snapshot import Snapshot


class AfsL:
    """Every GPU to the winner of a contest of lengths and gains."""

    name: ClassVar[str] = "afs-l"
    needs: ClassVar[Needs] = Needs.RATE | Needs.REMAINING
    cadence: ClassVar[Cadence] = ON_EVENTS
    guards: ClassVar[Guards] = ALL_GUARDS
    elastic: ClassVar[bool] = True

    def initial(self, seed: int) -> None:
        """It remembers nothing."""

    def decide(self, snap: Snapshot, perf: ThroughputModel, state: None) -> tuple[Decision, None]:
        """All that there is, grant by grant; jobs of unknown length count as endless."""
        jobs = snap.jobs
        order = np.arange(len(snap))
        types = assign_types(snap, order, smallest(snap), largest(snap), perf=perf)
        gpus = jobs.step * np.maximum(jobs.unit, 1) / WHOLE

        def won(types: Ints) -> Ints:
            left = remaining(snap, perf, types)
            length = np.where(np.isnan(left), np.inf, left)

            def contest(c: Climb, free: int) -> Ints:
                rows, ladder = c.rows, c.ladder
                return choose.contest(
                    c.first, c.cost, c.waits, length[rows], gpus[rows], c.speed, ladder.start, free, ladder.more
                )

            return climb(snap, perf, order, types, np.zeros(len(snap), np.int64), contest)

        types, count = settled(snap, perf, order, types, won)
        left = remaining(snap, perf, types)
        return verdict(snap, order, types, count, because_unknown(snap, types, count, left)), None
