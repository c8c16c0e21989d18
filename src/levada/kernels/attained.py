"""The loops of `policies/attained.py`: where each job in view stands in Tiresias's queues, and who comes first.

`ints` and `floats` are the blocks of job columns and `slots` names the jobs in view, by (submitted, number). `whole`
and `real` are the numbers of the columns `WHOLE_COLUMNS` and `REAL_COLUMNS` in the two blocks.
"""

from __future__ import annotations

from levada.kernels.arrays import Floats, Ints
from levada.kernels.switch import kernels

WHOLE_COLUMNS = ("number", "milli", "count", "observed")
REAL_COLUMNS = ("submitted", "first_started", "since", "gpu_seconds", "running_s", "waiting_s")

#: Rows of what `stand` finds: when a job was last promoted, and its service, running and waiting time since then; then
#: the job's counters up to now.
PROMOTED, SERVICE, RAN, WAITED, GPU_SECONDS, RUNNING_S, WAITING_S = range(7)


def locate(ints: Ints, slots: Ints, whole: Ints, known: Ints, active: Ints) -> tuple[Ints, bool]:
    """Per job its place among the numbers that are *known*, which ascend; -1 where it is not among them.

    Whether all jobs are known, and all that are known are *active*, which ascend too.
    """
    found: tuple[Ints, bool] = kernels["attained"].locate(ints, slots, whole, known, active)
    return found


def stand(
    ints: Ints,
    floats: Floats,
    slots: Ints,
    whole: Ints,
    real: Ints,
    now: float,
    at: Ints,
    queue: Ints,
    promoted: Floats,
    gpu_seconds: Floats,
    running_s: Floats,
    waiting_s: Floats,
    limits: Floats,
    knob: float,
) -> tuple[Ints, Floats, bool]:
    """Per job its queue and a block of the rows above, after all moves that are due; whether there were any.

    *at* is its place in the five columns that follow: its queue, and its counters when it was last *promoted*.
    """
    found: tuple[Ints, Floats, bool] = kernels["attained"].stand(
        ints,
        floats,
        slots,
        whole,
        real,
        now,
        at,
        queue,
        promoted,
        gpu_seconds,
        running_s,
        waiting_s,
        limits,
        knob,
    )
    return found


def in_order(
    ints: Ints, floats: Floats, slots: Ints, whole: Ints, real: Ints, queue: Ints, promoted: Floats, ran: Floats
) -> Ints:
    """Rows by queue, in it by start, then by when they came."""
    return kernels["attained"].in_order(ints, floats, slots, whole, real, queue, promoted, ran)


def soonest(
    ints: Ints,
    slots: Ints,
    whole: Ints,
    count: Ints,
    queue: Ints,
    service: Floats,
    ran: Floats,
    waited: Floats,
    limits: Floats,
    knob: float,
) -> float:
    """Seconds until time alone moves a job, where each has *count* workers from now on; inf if never."""
    return float(kernels["attained"].soonest(ints, slots, whole, count, queue, service, ran, waited, limits, knob))
