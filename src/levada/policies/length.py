"""How long jobs have to go, and who has the shortest way."""

from __future__ import annotations

import numpy as np

from levada.core.snapshot import Snapshot
from levada.core.types import Floats, Ints
from levada.perf.model import ThroughputModel, remaining_s


def remaining(snap: Snapshot, perf: ThroughputModel, types: Ints) -> Floats:
    """Serial seconds that each job has left on its type; nan where its work is not known."""
    jobs = snap.jobs
    return remaining_s(perf, jobs.number, np.maximum(types, 0), jobs.steps - jobs.steps_done)


def shortest_first(left: Floats) -> Ints:
    """Rows by time left; unknown ones last, equal ones in the order of submission."""
    return np.argsort(left, kind="stable")
