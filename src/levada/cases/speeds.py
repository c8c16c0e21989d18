"""What a case says about speeds and work, as a throughput model and columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from levada.cases.scene import Scene
from levada.perf.table import JobSpeed, PairSpeed, TableModel

if TYPE_CHECKING:
    from levada.cases.casefile import Case


def speeds(case: Case, scene: Scene, *, serial: bool) -> TableModel:
    """The model of the case; the work that is left goes into the table.

    *serial*: who asks wants seconds on one GPU (`remaining_s`) rather than steps, where the case has both.
    """
    world, jobs = scene.world, []
    # The case may name types that the cluster has not; only the model hears of them.
    kinds = world.inventory.types.copy()
    for slot, job in zip(scene.slots, case.jobs, strict=True):
        throughput = {kinds.add(name): rate for name, rate in (job.throughput or {}).items()}
        work = job.steps_left
        if serial and job.remaining_s is not None:
            # Let seconds be steps, at one step per second.
            work, throughput = job.remaining_s, {}
        # Only what is left is known, so steps are counted up to 0: from case to case they show what was done.
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
            throughput={kinds.add(name): (both[0], both[1]) for name, both in pair.throughput.items()},
        )
        for pair in case.pairs
    ]
    return TableModel(jobs, pairs)
