"""What policies do with all jobs in view at once, on all GPU types: who competes where, who gets how much, and why not.

`ints` is the block of job columns and `slots` names the jobs in view, which are rows here; `columns` are the numbers of
the columns `COLUMNS` in the block. `order` lists rows. `capacity` is per type, sizes are workers, and what one worker
takes is its `milli`, or its `cpu` where that is 0. A type of -1 is none.
"""

from __future__ import annotations

from levada.kernels.arrays import Bools, Floats, Ints
from levada.kernels.switch import kernels

COLUMNS = ("number", "min", "max", "step", "milli", "cpu", "count", "type", "any_type")

#: In tables of preference: the job may not use the type.
NOT_ALLOWED = 32767


def home_types(
    ints: Ints, slots: Ints, columns: Ints, preference: Ints, exists: Bools, capacity: Ints, size: Ints
) -> Ints:
    """Per job its present type while that can hold *size* workers, else its first preferred one, -1 where none exists.

    *preference* is per type and row.
    """
    return kernels["fill"].home_types(ints, slots, columns, preference, exists, capacity, size)


def assign_types(
    ints: Ints,
    slots: Ints,
    columns: Ints,
    preference: Ints,
    exists: Bools,
    capacity: Ints,
    totals: Ints,
    order: Ints,
    size: Ints,
    most: Ints,
    lineage: Ints,
    room: Ints,
    guarantee: Ints,
    fair: Ints,
) -> Ints:
    """Per job the type it competes on: it needs *size* workers and may use *most*. See `policies/assign.py`.

    *totals* are per type what there is, whoever has it: nobody may use more. *lineage* names the queues above each job
    (then -1); their *room*, per queue and type, must hold it too. Where a type alone could hold what a job needs, one
    that the *guarantee* of its first queue covers comes first. *fair* is what that queue may count on when all ask.
    """
    return kernels["fill"].assign_types(
        ints, slots, columns, preference, exists, capacity, totals, order, size, most, lineage, room, guarantee, fair
    )


def give(ints: Ints, slots: Ints, columns: Ints, capacity: Ints, order: Ints, types: Ints, size: Ints) -> Ints:
    """Workers per job when each in *order* gets *size* or, where that does not fit any more, nothing."""
    return kernels["fill"].give(ints, slots, columns, capacity, order, types, size)


def grow_in_turns(
    ints: Ints, slots: Ints, columns: Ints, capacity: Ints, order: Ints, types: Ints, count: Ints
) -> Ints:
    """Workers per job after what is free went round, step by step in *order*, to jobs that run and can grow.

    Many turns are taken at once: O(jobs x distinct ways to go), however much is free. Workers that take nothing are
    there at once.
    """
    return kernels["fill"].grow_in_turns(ints, slots, columns, capacity, order, types, count)


def on_grid(ints: Ints, slots: Ints, columns: Ints, column: int) -> Ints:
    """Per job the largest size it may have that is not above the one in *column*; its minimum where none is."""
    return kernels["fill"].on_grid(ints, slots, columns, column)


def climbers(ints: Ints, slots: Ints, columns: Ints, free: Ints, order: Ints, types: Ints, count: Ints) -> Ints:
    """Rows, in *order*, of jobs below their largest size that could pay for a grant more with what is *free*.

    That is their minimum where they have nothing, else one step. Workers that take nothing can always be paid for.
    """
    return kernels["fill"].climbers(ints, slots, columns, free, order, types, count)


def fitting(ints: Ints, slots: Ints, columns: Ints, free: Ints, types: Ints, code: int, other: int) -> Ints:
    """Per job *code* where its minimum fits in what is *free* of its type, else *other*."""
    return kernels["fill"].fitting(ints, slots, columns, free, types, code, other)


def left_over(ints: Ints, slots: Ints, columns: Ints, capacity: Ints, types: Ints, count: Ints) -> Ints:
    """Per type what is free after these grants."""
    return kernels["fill"].left_over(ints, slots, columns, capacity, types, count)


def blame(
    ints: Ints,
    slots: Ints,
    columns: Ints,
    capacity: Ints,
    types: Ints,
    count: Ints,
    left: Floats,
    code: int,
    other: int,
) -> Ints:
    """Per job *code* where nan in *left* is why it waits, else *other*.

    That is so where its minimum fits on its type, but not beside the jobs of which *left* is known.
    """
    return kernels["fill"].blame(ints, slots, columns, capacity, types, count, left, code, other)


def judge(
    ints: Ints,
    slots: Ints,
    columns: Ints,
    allowed: Ints,
    totals: Ints,
    order: Ints,
    types: Ints,
    count: Ints,
    reason: Ints,
    codes: Ints,
) -> Ints:
    """A decision as one block: number, type, count, reason, evidence and rank of each job.

    *allowed* is as *preference*, but by slot. *codes* are those of a job that runs, of one that has no type, and of one
    whose minimum is more than *totals* could ever hold on the types it is allowed: so many workers at most are the
    evidence. *reason* is for all the others.
    """
    return kernels["fill"].judge(ints, slots, columns, allowed, totals, order, types, count, reason, codes)


def serve(
    ints: Ints,
    slots: Ints,
    columns: Ints,
    preference: Ints,
    exists: Bools,
    allowed: Ints,
    capacity: Ints,
    totals: Ints,
    order: Ints,
    size: Ints,
    most: Ints,
    grow: bool,
    code: int,
    codes: Ints,
) -> Ints:
    """`assign_types` without queues, `give`, `grow_in_turns` if they shall *grow*, and `judge`, in one go.

    *code* is the reason of whoever waits.
    """
    return kernels["fill"].serve(
        ints, slots, columns, preference, exists, allowed, capacity, totals, order, size, most, grow, code, codes
    )
