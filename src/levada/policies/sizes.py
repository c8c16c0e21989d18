"""The sizes a job may have: its minimum plus whole steps, up to its maximum."""

from __future__ import annotations

import numpy as np

from levada.core.layout import INT_COLUMNS
from levada.core.types import Ints
from levada.kernels import fill
from levada.tables.jobtable import JobColumns
from levada.tables.snapshot import Snapshot

#: Where the kernels of `fill` find the columns that they read.
COLUMNS = np.array([INT_COLUMNS.index(name) for name in fill.COLUMNS])
_DESIRED, _MAX = INT_COLUMNS.index("desired"), INT_COLUMNS.index("max")


def on_grid(jobs: JobColumns, size: Ints) -> Ints:
    """The largest allowed size that is not above *size*; the minimum where none is."""
    inside = np.clip(size, jobs.min, jobs.max)
    return jobs.min + (inside - jobs.min) // jobs.step * jobs.step


def smallest(snap: Snapshot) -> Ints:
    """The minimum of each job in view."""
    return snap.table.min.take(snap.jobs.slots)


def asked(snap: Snapshot) -> Ints:
    """What the user of each job in view asked for, as an allowed size."""
    return fill.on_grid(snap.table.ints, snap.jobs.slots, COLUMNS, _DESIRED)


def largest(snap: Snapshot) -> Ints:
    """The largest allowed size of each job in view."""
    return fill.on_grid(snap.table.ints, snap.jobs.slots, COLUMNS, _MAX)


class Ladder:
    """The next sizes of some jobs, side by side in one flat table: job *j* owns `start[j]` to `start[j + 1]`.

    Rung 0 is what the job has; rung 1 its minimum where it has nothing, else one step more; and so on. At most *window*
    steps up are laid out; `more` says whose ladder goes on beyond them.
    """

    def __init__(self, have: Ints, least: Ints, step: Ints, most: Ints, longest: Ints, window: int) -> None:
        """*longest* bounds the rungs of each job to what could be paid for."""
        base = np.where(have > 0, have, least - step)
        climb = np.minimum((most - base) // step, longest)
        shown = np.minimum(climb, window)
        #: Rungs above the first that are shown.
        self.length = shown
        self.more = shown < climb
        self.start = np.zeros(len(have) + 1, np.int64)
        np.cumsum(shown + 1, out=self.start[1:])
        #: Which job each rung belongs to.
        self.job = np.arange(len(have)).repeat(shown + 1)
        rung = np.arange(self.start[-1]) - self.start[self.job]
        self.size = np.where(rung > 0, base[self.job] + rung * step[self.job], have[self.job])

    def reached(self, grants: Ints) -> Ints:
        """The size of each job after so many grants."""
        return self.size[self.start[:-1] + grants]
