"""Shortest average waiting time by assigning jobs to places in line, the last place of each GPU first.

Source: Le et al., "AlloX: Compute Allocation in Hybrid Clusters", EuroSys 2020, as Gavel models it. A job that has a
GPU keeps it. For the others, oldest first, the cost of the k-th place from the end of a GPU's line is k times the
time that the job needs on that GPU; the cheapest assignment tells who is first in each line. Jobs have one GPU.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
import numpy as np

from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import Shares, Sharing
from levada.policies.options import number_above
from levada.policies.protocol import Needs
from levada.solve.lines import first_in_line

#: Steps/s of a job that cannot run on a type: it is never sent there while there is another choice.
_STANDSTILL = 1e-10


class AlloxState(msgspec.Struct, frozen=True, kw_only=True):
    """The type of each job that has a GPU, by number."""

    type_of: dict[int, int] = {}


class Allox(Sharing):
    """Who is next in line on which GPU."""

    name: ClassVar[str] = "allox"
    needs: ClassVar[Needs] = Needs.RATE | Needs.REMAINING
    objective: ClassVar[str] = "allox_assignment_cost"
    aware: ClassVar[bool] = True

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = number_above("alpha", alpha, 0.0)

    def initial(self, seed: int) -> AlloxState:
        """Nobody has a GPU."""
        return AlloxState()

    def shares(self, instance: Instance, perf: ThroughputModel, state: AlloxState) -> tuple[Shares, AlloxState]:
        """1 for whoever is first in a line, 0 for the others."""
        row_of = {int(number): row for row, number in enumerate(instance.number)}
        type_of = {number: kind for number, kind in state.type_of.items() if number in row_of}
        free = instance.capacity.astype(np.int64)
        for kind in type_of.values():
            free[kind] -= 1
        waits = [row for number, row in row_of.items() if number not in type_of and instance.scale[row] == 1]
        waits.sort(key=lambda row: -instance.elapsed[row])
        # Ties between equally cheap assignments go by the order of lines: slow types first, as in Gavel's clusters.
        kinds = sorted(instance.columns(), key=lambda kind: float(instance.rate[:, kind].sum()))
        lines = np.repeat(kinds, np.maximum(free[kinds], 0))
        rows = np.array(waits[: max(int(self.alpha * len(waits)), len(lines))], np.int64)
        cost = 0.0
        if len(rows) and len(lines):
            rate = instance.rate[rows][:, lines]
            time = instance.steps_left[rows, None] / np.where(rate > 0, rate, _STANDSTILL)
            cost, first = first_in_line(time, instance.elapsed[rows])
            type_of |= {
                int(instance.number[rows[job]]): int(lines[line]) for line, job in first.items() if rate[job, line] > 0
            }
        share = np.zeros_like(instance.rate)
        for number, kind in type_of.items():
            share[row_of[number], kind] = 1.0
        return Shares(share=share, objective=cost), AlloxState(type_of=type_of)
