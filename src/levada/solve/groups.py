"""Groups: the jobs of a row that have the same favour."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels import classes
from levada.solve.problem import ShareProblem


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a problem, by row and favour."""

    row: Ints  #: (groups,): row of the problem
    favour: Floats  #: (groups,): factor of the weight
    count: Floats  #: (groups,): number of jobs
    of: Ints  #: (jobs,): group of each job


def group_jobs(problem: ShareProblem, favour: Floats | None) -> Groups:
    """Group jobs by row and *favour* (jobs,); without it, each row is a group."""
    rows = len(problem.rate)
    of = np.arange(rows) if problem.of is None else problem.of
    if favour is None:
        return Groups(row=np.arange(rows), favour=np.ones(rows), count=problem.count, of=of)
    row, row_favour, count, group_of = classes.groups(of, favour)
    return Groups(row=row, favour=row_favour, count=count, of=group_of)


def split_groups(problem: ShareProblem, groups: Groups) -> ShareProblem:
    """The same problem with one row per group."""
    row = groups.row
    return ShareProblem(
        rate=problem.rate[row],
        scale=problem.scale[row],
        weight=problem.weight[row],
        entity=problem.entity[row],
        capacity=problem.capacity,
        of=groups.of,
    )
