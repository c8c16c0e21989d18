"""AlloX: minimise average completion time by matching jobs to queue positions.

Source: Le et al., "AlloX: Compute Allocation in Hybrid Clusters", EuroSys 2020, as Gavel models it. A job that has a
GPU keeps it. For the others, oldest first, the k-th position from the end of a GPU's queue costs k times the job's
remaining time on that GPU; the cheapest assignment determines the head of each queue. Jobs have one GPU.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import ShareDefaults, Shares
from levada.policies.options import number_above
from levada.policies.protocol import Needs
from levada.solve.allox import first_in_queue

#: Assumed steps/s of a job that cannot run on a type: small enough to be chosen only as a last resort.
_NO_PROGRESS = 1e-10


class AlloxState(msgspec.Struct, frozen=True, kw_only=True):
    """The type of each job that has a GPU, by number."""

    type_of: dict[int, int] = {}


class Allox(ShareDefaults):
    """Jobs at the head of the queue of each GPU run."""

    name: ClassVar[str] = "allox"
    needs: ClassVar[Needs] = Needs.RATE | Needs.REMAINING
    objective: ClassVar[str] = "allox_assignment_cost"
    aware: ClassVar[bool] = True

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = number_above("alpha", alpha, 0.0)

    def initial(self, seed: int) -> AlloxState:
        """No job has a GPU."""
        return AlloxState()

    def shares(self, instance: Instance, perf: ThroughputModel, state: AlloxState) -> tuple[Shares, AlloxState]:
        """1 for jobs with a GPU or at the head of a queue, 0 for the others."""
        row_of = {int(number): row for row, number in enumerate(instance.number)}
        type_of = {number: kind for number, kind in state.type_of.items() if number in row_of}
        free = instance.capacity.astype(np.int64)
        for kind in type_of.values():
            free[kind] -= 1
        waiting = [row for number, row in row_of.items() if number not in type_of and instance.scale[row] == 1]
        waiting.sort(key=lambda row: -instance.elapsed[row])
        # The order of queues breaks ties between equally cheap assignments: slow types first, as in Gavel's clusters.
        kinds = sorted(instance.columns(), key=lambda kind: float(instance.rate[:, kind].sum()))
        queues = np.repeat(kinds, np.maximum(free[kinds], 0))
        rows = np.array(waiting[: max(int(self.alpha * len(waiting)), len(queues))], np.int64)
        cost = 0.0
        if len(rows) and len(queues):
            rate = instance.rate[rows][:, queues]
            time = instance.steps_left[rows, None] / np.where(rate > 0, rate, _NO_PROGRESS)
            cost, first = first_in_queue(time, instance.elapsed[rows])
            type_of |= {
                int(instance.number[rows[job]]): int(queues[queue])
                for queue, job in first.items()
                if rate[job, queue] > 0
            }
        share = np.zeros_like(instance.rate)
        for number, kind in type_of.items():
            share[row_of[number], kind] = 1.0
        return Shares(share=share, objective=cost), AlloxState(type_of=type_of)
