"""The steps between a decision and its operations, and the scans behind the invariants, over whole columns.

`target` and `held` are `owner` columns of the two planes (a slot per device, or below zero); job columns are by slot.
"""

from __future__ import annotations

from levada.kernels.arrays import Bools, Floats, Ints
from levada.kernels.switch import kernels


def accrue(ints: Ints, floats: Floats, slots: Ints, now: float, columns: tuple[int, ...]) -> None:
    """Adds the time since each job was last accounted for to what it waited, or to what its seen workers used.

    *columns* are the numbers of (observed, phase, milli) and of (since, waiting_s, running_s, gpu_seconds,
    run_waiting_s, run_running_s, run_gpu_seconds). Time never runs backwards here: an earlier *now* adds nothing.
    """
    kernels["state"].accrue(ints, floats, slots, now, columns)


def blocked(target: Ints, held: Ints, slots: int) -> Ints:
    """Per slot how many devices it should have that others still hold."""
    count: Ints = kernels["state"].blocked(target, held, slots)
    return count


def changes(target: Ints, held: Ints, chosen: Bools) -> tuple[Ints, Ints]:
    """Devices that the *chosen* slots take, and devices that they give up, each ascending."""
    pair: tuple[Ints, Ints] = kernels["state"].changes(target, held, chosen)
    return pair


def worker_faults(
    owner: Ints, index: Ints, node_of: Ints, type_of: Ints, judged: Bools, gpu_type: Ints, count: Ints, whole: Ints
) -> Bools:
    """Per slot under *judged* whether its devices do not add up to *count* workers on one type.

    Each worker must have *whole* devices, all on one node; so a slot with *whole* 0 may have none. An index below zero
    or beyond eight million is a fault, too.
    """
    faults: Bools = kernels["state"].worker_faults(owner, index, node_of, type_of, judged, gpu_type, count, whole)
    return faults


def node_use(owner: Ints, index: Ints, node_of: Ints, nodes: int, cpu: Ints, memory: Ints) -> tuple[Ints, Ints]:
    """Per node the cores and memory that workers on whole devices take, counted anew from the devices.

    A worker counts once on each node where it has devices, however many they are: while it moves it is on two.
    """
    use: tuple[Ints, Ints] = kernels["state"].node_use(owner, index, node_of, nodes, cpu, memory)
    return use


def enter(
    ints: Ints,
    floats: Floats,
    preference: Ints,
    lines: Ints,
    living: int,
    slots: Ints,
    new_ints: Ints,
    new_floats: Floats,
    rows: Ints,
    facts: Ints,
    ranks: Ints,
) -> bool:
    """Puts new jobs into these *slots* of the table, and behind the first *living* places of its *lines*.

    They are *rows* of two blocks like the table's; *facts* (jobs, 6) are number, workload, entity, queue_name, queue
    and any_type, and *ranks* (jobs, types) preferences. Lines are slots in order of submission, numbers, and slots.
    Whether the first line is in order of submission still.
    """
    in_order: bool = kernels["state"].enter(
        ints, floats, preference, lines, living, slots, new_ints, new_floats, rows, facts, ranks
    )
    return in_order


def without(lines: Ints, living: int, gone: Ints, slots: int) -> Ints:
    """Lines as of `enter`, of which *living* places count, in which these slots (all below *slots*) are no more."""
    left: Ints = kernels["state"].without(lines, living, gone, slots)
    return left


def fresh_rows(old: Ints, new: Ints) -> Bools:
    """Which rows of *new* are not among those of *old*.

    A row is a column of a (6, n) array: slot, index, node, device (below zero: none), and two numbers more.
    """
    fresh: Bools = kernels["state"].fresh_rows(old, new)
    return fresh
