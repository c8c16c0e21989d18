"""Whole steps of the engine in one call each, for jobs that take whole GPUs and nothing else.

Some hundred small array operations make up one decision; below a few hundred jobs their number is what costs, not their
length. Compiled, such a step is one call. The engine's own functions are these steps in numpy, and do everything that
is rarer: each function here says first whether it did the step. Where it says no, it has changed nothing, and the
engine goes the long way, to the same result.

`ints` and `floats` are the blocks of the job table, laid out as `kernels.columns` says; `numbers` and `slot_of` its
index; `target` and `held` the owners of devices on the two planes.
"""

from __future__ import annotations

from typing import Any

from levada.kernels.arrays import Floats, Ints
from levada.kernels.switch import kernels


def offered() -> bool:
    """Whether any of these would do its step; else nobody need gather what it takes to ask."""
    found: bool = kernels["steps"].OFFERED
    return found


def survey(*columns: Any) -> tuple[bool, Ints, float, bool, bool, Ints]:
    """Brings all jobs' times up to now; the slots that a policy gets to see, in order.

    Then when the first guard falls, whether some job is out of view because an operation on it is under way, whether
    some job in view may be near its end; and `capacity`. Guards that are not wanted are -inf seconds long.
    """
    done: tuple[bool, Ints, float, bool, bool, Ints] = kernels["steps"].survey(*columns)
    return done


def waiting(*columns: Any) -> tuple[bool, Ints, bool, Ints]:
    """As `survey`, for jobs that wait and shall have nothing so far: the slots that a policy gets to see, in order.

    Then whether some operation is under way, and `capacity`. Only their times are brought up to now.
    """
    done: tuple[bool, Ints, bool, Ints] = kernels["steps"].waiting(*columns)
    return done


def capacity(view: Ints, slots: int, *inventory: Any) -> Ints | None:
    """Per type what the jobs in *view* may have together where only whole devices have owners; None: not told here.

    *inventory* are the number of types, the owners of devices on the target plane, and the cores in use per node; its
    type, what others leave of it and whether it is there per device; and the cores that they leave per node. Type 0
    stands for cores.
    """
    total: Ints | None = kernels["steps"].capacity(view, slots, *inventory)
    return total


def could_fill(ints: Ints, order: Ints, target: Ints) -> bool:
    """Whether some job waits, and some device is free or it needs no whole one."""
    found: bool = kernels["steps"].could_fill(ints, order, target)
    return found


def commit(said: Ints, ranked: bool, batched: bool, *columns: Any) -> tuple[bool, bool, bool]:
    """Places, checks and accepts a decision; then whether operations follow, and whether some job was not up to date.

    *said* has the rows number, type, count, reason, evidence; rank if *ranked*; and last, if *batched*, batch.
    """
    done: tuple[bool, bool, bool] = kernels["steps"].commit(said, ranked, batched, *columns)
    return done


def issue(*columns: Any) -> tuple[bool, bool, Ints, Ints, Ints]:
    """Sends out every operation that may go; whether some could not.

    Rows number, kind, generation, type and count of the operations; then devices that they take, and devices that they
    give up, each with the row of its operation.
    """
    done: tuple[bool, bool, Ints, Ints, Ints] = kernels["steps"].issue(*columns)
    return done


def running(report: Ints, *columns: Any) -> tuple[bool, bool, bool, float, Floats]:
    """Operations are complete; whether it is news, and whether operations follow.

    Then when the first time limit ends; kind of operation and workload of the jobs that tell what a restart costs, and
    the seconds that it took, in three rows. *report* has the rows number and generation.
    """
    done: tuple[bool, bool, bool, float, Floats] = kernels["steps"].running(report, *columns)
    return done


def released(report: Ints, *columns: Any) -> tuple[bool, bool, bool, bool]:
    """Operations gave up what they had to; whether it is news, whether anything is free now, and operations follow."""
    done: tuple[bool, bool, bool, bool] = kernels["steps"].released(report, *columns)
    return done


def vacate(slots: Ints, *columns: Any) -> bool:
    """These jobs, which are over, have nothing any more on either plane; their times are up to now."""
    done: bool = kernels["steps"].vacate(slots, *columns)
    return done
