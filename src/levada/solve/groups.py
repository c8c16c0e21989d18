"""Jobs of one row that are not favoured alike: between jobs and rows."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels import classes
from levada.solve.problem import Problem


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of a problem, by row and by how much they are favoured."""

    row: Ints  #: (groups,): whose jobs they are
    favour: Floats  #: (groups,)
    count: Floats  #: (groups,): how many jobs
    of: Ints  #: (jobs,): the group of each


def groups_of(problem: Problem, favour: Floats | None) -> Groups:
    """The groups where *favour* is that of each job; without it, all are favoured alike, and each row is a group."""
    rows = len(problem.rate)
    of = np.arange(rows) if problem.of is None else problem.of
    if favour is None:
        return Groups(row=np.arange(rows), favour=np.ones(rows), count=problem.count, of=of)
    row, alike, count, mine = classes.groups(of, favour)
    return Groups(row=row, favour=alike, count=count, of=mine)


def apart(problem: Problem, groups: Groups) -> Problem:
    """The same problem with a row for each group."""
    row = groups.row
    return Problem(
        rate=problem.rate[row],
        scale=problem.scale[row],
        weight=problem.weight[row],
        entity=problem.entity[row],
        capacity=problem.capacity,
        of=groups.of,
    )
