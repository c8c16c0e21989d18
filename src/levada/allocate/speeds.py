"""The speeds and the remaining work of a case, as a throughput model and columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from levada.allocate.build_cluster import CaseWorld
from levada.perf.table_model import JobSpeed, PairSpeed, TableModel

if TYPE_CHECKING:
    from levada.allocate.case_file import Case


def speeds(case: Case, setup: CaseWorld, *, serial: bool) -> TableModel:
    """The throughput model of the case; the remaining work is set in the table.

    *serial*: prefer seconds on one GPU (`remaining_s`) to steps if the case has both.
    """
    world, jobs = setup.world, []
    # The case may contain speeds for types that the cluster does not have; only the model gets them.
    kinds = world.inventory.types.copy()
    for slot, job in zip(setup.slots, case.jobs, strict=True):
        throughput = {kinds.add(name): rate for name, rate in (job.throughput or {}).items()}
        work = job.steps_left
        if serial and job.remaining_s is not None:
            # Count one step per second.
            work, throughput = job.remaining_s, {}
        # Only the remaining steps are known, so steps count up to 0; differences between cases are the completed steps.
        world.table.steps[slot] = np.nan if work is None else 0.0
        world.table.steps_done[slot] = 0.0 if work is None else -work
        jobs.append(
            JobSpeed(
                job=world.numbers[job.id],
                speedup={int(size): value for size, value in (job.speedup or {}).items()},
                throughput=throughput,
                scale_factor=job.scale_factor,
            )
        )
    pairs = [
        PairSpeed(
            a=world.numbers[pair.jobs[0]],
            b=world.numbers[pair.jobs[1]],
            throughput={kinds.add(name): (rates[0], rates[1]) for name, rates in pair.throughput.items()},
        )
        for pair in case.pairs
    ]
    return TableModel(jobs, pairs)
