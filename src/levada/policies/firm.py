"""Jobs that may be resized but neither stopped nor moved: a policy decides about them as about all others.

Where its answer would stop such a job, it gets its minimum instead; where it would send it to another type, it stays as
it is. The policy then decides about all the others anew, with what that leaves, until there is no such job any more.
So nobody's share rests on something that does not happen.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from levada.core.decision import Decision
from levada.core.reasons import Code
from levada.core.types import Ints
from levada.policies.protocol import S
from levada.tables.snapshot import Snapshot


def decide_firmly(snap: Snapshot, decide: Callable[[Snapshot], tuple[Decision, S]]) -> tuple[Decision, S]:
    """What *decide* says of *snap*, with the jobs that are firm still there.

    The state is that of the first round, in which it saw all of them.
    """
    jobs = snap.jobs
    firm = np.zeros(len(snap), bool)
    firm[snap.firm] = True
    rows, capacity = np.arange(len(snap)), snap.capacity.copy()
    kept = np.zeros(len(snap), np.int64)
    found, after = decide(snap)
    while (lost := firm[rows] & ((found.count == 0) | (found.type != jobs.type[rows]))).any():
        stay = rows[lost]
        kept[stay] = np.where(found.count[lost] == 0, jobs.min[stay], jobs.count[stay])
        np.subtract.at(capacity, jobs.type[stay], kept[stay] * jobs.unit[stay])
        rows = rows[~lost]
        found, _ = decide(snap.restricted(rows, capacity))
    return (found if len(rows) == len(snap) else _whole(snap, rows, found, kept)), after


def _whole(snap: Snapshot, rows: Ints, found: Decision, kept: Ints) -> Decision:
    """*found* of these *rows*, and *kept* of the others."""
    jobs, runs = snap.jobs, kept > 0

    def column(rest: Ints, said: Ints) -> Ints:
        made = rest.copy()
        made[rows] = said
        return made

    nothing = np.zeros(len(snap), np.int64)
    rank = np.arange(len(rows)) if found.rank is None else found.rank
    return msgspec.structs.replace(
        found,
        number=jobs.number,
        type=column(np.where(runs, jobs.type, -1), found.type),
        count=column(kept, found.count),
        reason=column(np.full(len(snap), int(Code.RUNS)), found.reason),
        evidence=column(nothing, found.evidence),
        rank=column(nothing - 1, rank),
        batch=column(jobs.batch, nothing[rows] if found.batch is None else found.batch),
    )
