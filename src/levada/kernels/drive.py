"""What a simulation asks at every turn: how far jobs are, when they will be done, and which GPUs are in use.

Progress stands in one block, `jobs`, with a column for each job: its whole work, what it had done at the time `SINCE`,
its steps per second from then on, and when it will be done. Columns of nobody are as those of a job that pauses.
"""

from __future__ import annotations

from levada.kernels.arrays import Floats, Ints
from levada.kernels.switch import kernels

#: Rows of the block.
TOTAL, DONE, RATE, SINCE, END = range(5)


def pause(jobs: Floats, columns: Ints, now: float) -> float:
    """The jobs in these columns make no progress from now on; when the first of them would have been done."""
    end: float = kernels["drive"].pause(jobs, columns, now)
    return end


def go(jobs: Floats, columns: Ints, now: float, rate: Floats, since: Floats) -> tuple[float, float]:
    """The jobs in these columns pause now, if they do not, and make so many steps per second from then on.

    When the first of them would have been done, and when it will be.
    """
    ends: tuple[float, float] = kernels["drive"].go(jobs, columns, now, rate, since)
    return ends


def finish(jobs: Floats, now: float) -> Ints:
    """The columns of the jobs that are done by now, ascending; from now on they pause with all their work done."""
    columns: Ints = kernels["drive"].finish(jobs, now)
    return columns


def steps(jobs: Floats, columns: Ints, now: float) -> Floats:
    """How far the jobs in these columns are."""
    done: Floats = kernels["drive"].steps(jobs, columns, now)
    return done


def use(owner: Ints, type_of: Ints, seconds: float, used: Floats, prices: Floats) -> float:
    """Adds to *used* per type the GPU-seconds of so many seconds, and tells what they cost at these *prices*.

    Devices that have an owner or are shared are in use; nobody's have -1.
    """
    cost: float = kernels["drive"].use(owner, type_of, seconds, used, prices)
    return cost


def node_counts(owner: Ints, node_of: Ints, part_owner: Ints, part_node: Ints, chosen: Ints, slots: int) -> Ints:
    """On how many nodes each of the *chosen* slots has whole devices, or other places (*part_owner* is on *part_node*).

    All slots are below *slots*; none is chosen twice.
    """
    count: Ints = kernels["drive"].node_counts(owner, node_of, part_owner, part_node, chosen, slots)
    return count
