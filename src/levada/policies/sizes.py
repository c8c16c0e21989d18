"""The allowed sizes of a job: its minimum plus whole steps, up to its maximum."""

from __future__ import annotations

import numpy as np

from levada.core.layout import INT_COLUMNS
from levada.core.types import Ints
from levada.kernels import fill
from levada.tables.job_table import JobColumns
from levada.tables.snapshot import Snapshot

#: Column indices for the kernels of `fill`.
COLUMNS = np.array([INT_COLUMNS.index(name) for name in fill.COLUMNS])
_DESIRED, _MAX = INT_COLUMNS.index("desired"), INT_COLUMNS.index("max")


def on_grid(jobs: JobColumns, size: Ints) -> Ints:
    """The largest allowed size of at most *size*, but at least the minimum."""
    inside = np.clip(size, jobs.min, jobs.max)
    return jobs.min + (inside - jobs.min) // jobs.step * jobs.step


def smallest(snap: Snapshot) -> Ints:
    """The minimum of each job in view."""
    return snap.table.min.take(snap.jobs.slots)


def asked(snap: Snapshot) -> Ints:
    """The requested size of each job in view, rounded down to an allowed size."""
    return fill.on_grid(snap.table.ints, snap.jobs.slots, COLUMNS, _DESIRED)


def largest(snap: Snapshot) -> Ints:
    """The largest allowed size of each job in view."""
    return fill.on_grid(snap.table.ints, snap.jobs.slots, COLUMNS, _MAX)


class SizeTable:
    """The next sizes of several jobs in one flat table.

    Job *j* owns entries `start[j]` to `start[j + 1]`. Entry 0 is the current size; entry 1 is the minimum for a pending
    job, else one step more; and so on. The table has at most *window* steps per job; `more` marks the jobs that could
    grow further.
    """

    def __init__(self, have: Ints, least: Ints, step: Ints, most: Ints, longest: Ints, window: int) -> None:
        """*longest* bounds the steps of each job by the capacity it could pay for."""
        base = np.where(have > 0, have, least - step)
        steps = np.minimum((most - base) // step, longest)
        #: Steps of each job in the table.
        self.length = np.minimum(steps, window)
        self.more = self.length < steps
        self.start = np.zeros(len(have) + 1, np.int64)
        np.cumsum(self.length + 1, out=self.start[1:])
        #: The job of each entry.
        self.job = np.arange(len(have)).repeat(self.length + 1)
        entry = np.arange(self.start[-1]) - self.start[self.job]
        self.size = np.where(entry > 0, base[self.job] + entry * step[self.job], have[self.job])

    def reached(self, grants: Ints) -> Ints:
        """The size of each job after *grants* grants."""
        return self.size[self.start[:-1] + grants]
