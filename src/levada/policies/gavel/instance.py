"""A snapshot as the numbers that share policies reckon with: rates, GPUs per job, GPUs per type, work left."""

from __future__ import annotations

import numpy as np

from levada.core.snapshot import Snapshot
from levada.core.types import CPU_TYPE, WHOLE, Bools, Floats, Ints
from levada.perf.model import ThroughputModel
from levada.policies.assign import existing
from levada.policies.sizes import on_grid

#: A job of unknown length is taken to need so long on its fastest type, from now on.
UNKNOWN_LENGTH_S = 3600.0


class Instance:
    """One moment, as arrays over the jobs in view (rows) and the GPU types of the inventory (columns)."""

    def __init__(self, snap: Snapshot, perf: ThroughputModel) -> None:
        jobs = snap.jobs
        self.snap = snap
        self.perf = perf
        self.number: Ints = jobs.number
        self.allowed: Bools = snap.allowed & existing(snap)
        # These policies take sizes as given, but for what no type could hold, all of it that queues and others leave.
        at_most = np.where(self.allowed, snap.capacity // np.maximum(jobs.unit, 1)[:, None], 0).max(axis=1, initial=0)
        #: Workers of each job.
        self.size: Ints = on_grid(jobs, np.minimum(jobs.desired, at_most))
        #: GPUs of each job (cores for a job without any).
        self.scale: Floats = self.size * np.maximum(jobs.unit, 1) / WHOLE
        #: Its workers are one whole GPU each, and nothing else: only such jobs share devices.
        self.plain: Bools = (jobs.milli == WHOLE) & (jobs.servers == 0)
        self.weight: Floats = jobs.weight
        self.entity: Ints = jobs.entity
        self.submitted: Floats = jobs.submitted
        self.elapsed: Floats = snap.now - jobs.submitted
        self.steps_done: Floats = jobs.steps_done
        self.deadline: Floats = jobs.deadline
        self.capacity: Floats = snap.capacity / WHOLE
        # Cores are for jobs without a GPU, and may be without limit.
        self.capacity[CPU_TYPE] = min(self.capacity[CPU_TYPE], self.scale[jobs.milli == 0].sum())
        # A job that asks for nothing at all can always run.
        self.capacity[CPU_TYPE] += self.scale[jobs.unit == 0].sum()
        #: $ per GPU and hour, 1 where nobody said.
        self.prices: Floats = np.where(np.isnan(snap.prices), 1.0, snap.prices)
        types = np.arange(len(snap.capacity))
        rates = perf.rates(self.number[:, None], types[None, :], self.size[:, None])
        #: Steps/s of the whole job; 0 = cannot run there.
        self.rate: Floats = np.where(self.allowed, rates, 0.0)
        # Tables are of GPUs; that a job without one has no speed there means nothing.
        on_cores = (jobs.milli == 0) & self.allowed[:, CPU_TYPE] & (self.rate[:, CPU_TYPE] == 0)
        self.rate[on_cores, CPU_TYPE] = 1.0
        left = jobs.steps - jobs.steps_done
        guess = self.rate.max(axis=1, initial=0.0) * UNKNOWN_LENGTH_S
        #: Steps that are left; a guess where nobody knows.
        self.steps_left: Floats = np.where(np.isnan(left), guess, np.maximum(left, 0.0))

    def __len__(self) -> int:
        return len(self.number)

    @property
    def names(self) -> tuple[str, ...]:
        """The GPU types' names, by column."""
        return tuple(self.snap.inventory.types)

    def by_name(self) -> list[int]:
        """Columns of the types that have capacity, in the order of their names."""
        names = self.names
        return sorted((column for column in range(len(names)) if self.capacity[column] > 0), key=lambda c: names[c])
