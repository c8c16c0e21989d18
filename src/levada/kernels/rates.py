"""How fast each job is on each type: looked up in a table, and held to what the job may use; and how near its end."""

from __future__ import annotations

from levada.kernels.arrays import Bools, Floats, Ints
from levada.kernels.switch import kernels


def look_up(table: Floats, row_of: Ints, column_of: Ints, jobs: Ints, sizes: Ints, types: int) -> Floats:
    """(jobs, types): cells of *table* (rows, columns, sizes from 0 on) for each job on each of the first *types* types.

    *row_of* and *column_of* hold the row of job n and the column of type n at n + 1; beyond their ends, what stands
    there. A size beyond the table is its last one, one below 0 its first.
    """
    found: Floats = kernels["rates"].look_up(table, row_of, column_of, jobs, sizes, types)
    return found


def look_up_each(table: Floats, row_of: Ints, column_of: Ints, jobs: Ints, types: Ints, sizes: Ints) -> Floats:
    """As `look_up`, for each job on a type of its own."""
    found: Floats = kernels["rates"].look_up_each(table, row_of, column_of, jobs, types, sizes)
    return found


def hold(rate: Floats, allowed: Bools, milli: Ints) -> tuple[Floats, Floats]:
    """Sets *rate* (jobs, types) to 0 where a job may not run; the highest of each job, and each over that.

    Tables are of GPUs: a job without one (*milli* 0) that may use the first type, cores, has rate 1 there if none else.
    """
    found: tuple[Floats, Floats] = kernels["rates"].hold(rate, allowed, milli)
    return found


def halvings(floats: Floats, slots: Ints, scale: Floats, best: Floats, longest_s: float, most: int) -> Ints:
    """Per job how often *longest_s* of GPU time must be halved to come down to what it needs to be done, up to *most*.

    *floats* is a block of the table, *scale* the GPUs of each job in *slots*, *best* its highest rate. 0 where nobody
    can tell: who did all that it said, and goes on, has said nothing.
    """
    found: Ints = kernels["rates"].halvings(floats, slots, scale, best, longest_s, most)
    return found
