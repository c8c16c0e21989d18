"""Jobs that may be resized but not stopped or moved (pinned jobs).

The policy decides about pinned jobs like about all others. If the decision stops a pinned job, the job gets its minimum
instead; if the decision moves it to another type, the job keeps type and size. The policy then decides again about the
remaining jobs with the remaining capacity, until the decision keeps all pinned jobs. So no share relies on capacity
that does not become free.
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


def decide_with_pinned(snap: Snapshot, decide: Callable[[Snapshot], tuple[Decision, S]]) -> tuple[Decision, S]:
    """The decision of *decide* with all pinned jobs kept running.

    The state is that of the first call, which sees all jobs.
    """
    jobs = snap.jobs
    pinned = np.zeros(len(snap), bool)
    pinned[snap.firm] = True
    rows, capacity = np.arange(len(snap)), snap.capacity.copy()
    fixed = np.zeros(len(snap), np.int64)
    decision, after = decide(snap)
    while (lost := pinned[rows] & ((decision.count == 0) | (decision.type != jobs.type[rows]))).any():
        stay = rows[lost]
        fixed[stay] = np.where(decision.count[lost] == 0, jobs.min[stay], jobs.count[stay])
        np.subtract.at(capacity, jobs.type[stay], fixed[stay] * jobs.unit[stay])
        rows = rows[~lost]
        decision, _ = decide(snap.restricted(rows, capacity))
    return (decision if len(rows) == len(snap) else _combined(snap, rows, decision, fixed)), after


def _combined(snap: Snapshot, rows: Ints, decision: Decision, fixed: Ints) -> Decision:
    """The decision about *rows* combined with the fixed sizes of the other jobs."""
    jobs, runs = snap.jobs, fixed > 0

    def column(rest: Ints, decided: Ints) -> Ints:
        values = rest.copy()
        values[rows] = decided
        return values

    zeros = np.zeros(len(snap), np.int64)
    rank = np.arange(len(rows)) if decision.rank is None else decision.rank
    return msgspec.structs.replace(
        decision,
        number=jobs.number,
        type=column(np.where(runs, jobs.type, -1), decision.type),
        count=column(fixed, decision.count),
        reason=column(np.full(len(snap), int(Code.RUNS)), decision.reason),
        evidence=column(zeros, decision.evidence),
        rank=column(zeros - 1, rank),
        batch=column(jobs.batch, zeros[rows] if decision.batch is None else decision.batch),
    )
