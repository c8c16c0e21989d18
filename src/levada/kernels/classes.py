"""Which rows are equal."""

from __future__ import annotations

from levada.kernels.arrays import Floats, Ints
from levada.kernels.switch import kernels


def distinct_rows(keys: Floats) -> tuple[Ints, Ints]:
    """Where each distinct row of *keys* stands first, in order, and for every row the number of its distinct one.

    Rows are equal where their numbers have the same bits; only minus zero is zero.
    """
    found: tuple[Ints, Ints] = kernels["classes"].distinct_rows(keys)
    return found


def groups(row: Ints, favour: Floats) -> tuple[Ints, Floats, Floats, Ints]:
    """Jobs of the same *row* and *favour* are a group: the row and favour of each, how many jobs it has, in the order
    in which groups first appear; and the group of each job."""
    found: tuple[Ints, Floats, Floats, Ints] = kernels["classes"].groups(row, favour)
    return found


def rows_of(
    believed: Floats, rate: Floats, scale: Floats, weight: Floats, capacity: Floats, alike: Ints, weighted: bool
) -> tuple[Floats, Floats, Floats, Ints, Ints]:
    """Jobs as rows of equal ones: rates that a policy *believes*, where a job can run; scale, weight, and *alike*'s
    first column of each row; and the row of each job.

    A job can run where its *rate* is above 0 and its *scale* is not above *capacity*. Where *weighted*, its weight
    makes up for the part of the cluster where it cannot; otherwise it is 1. Jobs are equal if what *alike* says is.
    """
    found: tuple[Floats, Floats, Floats, Ints, Ints] = kernels["classes"].rows_of(
        believed, rate, scale, weight, capacity, alike, weighted
    )
    return found
