"""What share policies see of a moment: what there is of each type, and each job's size, in blocks of few columns."""

from __future__ import annotations

from levada.kernels.arrays import Bools, Floats, Ints
from levada.kernels.switch import kernels

#: Rows of what there is by type, as in `core.openings`: whether there is any, what others leave to us, and all of it.
EXISTS, ROOM, TOTAL = range(3)
#: Rows of the first block of `jobs`. RUNS is the type it is to run on at present, -1 = none.
NUMBER, SIZE, UNIT, RUNS, LEAST, MILLI = range(6)
#: Rows of the second one.
WEIGHT, AGE = range(2)


def jobs(
    ints: Ints,
    floats: Floats,
    slots: Ints,
    preference: Ints,
    places: Ints,
    exists: Ints,
    capacity: Ints,
) -> tuple[Ints, Floats, Bools]:
    """The jobs in *slots* as two blocks, and per job and type whether it may run there.

    *ints* and *floats* are the blocks of the table, laid out as `kernels.columns` says. *preference* is by type and
    place; *places* has that of each job. The size is what a job asks for, but no more than any type holds, and a size
    it may have.
    """
    found: tuple[Ints, Floats, Bools] = kernels["view"].jobs(ints, floats, slots, preference, places, exists, capacity)
    return found


def amounts(jobs: Ints, ints: Ints, slots: Ints, capacity: Ints) -> tuple[Floats, Floats, Ints]:
    """GPUs of each job (cores for a job without any), GPUs of each type, and what jobs must share to be equal.

    *jobs* is the first block of `jobs`, *ints* that of the table. Cores may be without limit: there are no more than
    jobs without a GPU take, and always enough for jobs that ask for nothing at all. The rows of the last block are
    entity, workload, and whether workers are one whole GPU each and nothing else.
    """
    found: tuple[Floats, Floats, Ints] = kernels["view"].amounts(jobs, ints, slots, capacity)
    return found
