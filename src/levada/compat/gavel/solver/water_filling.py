"""The programs of water-filling, as published; the last one has the solution.

Each program raises all rows that can still rise by the same amount and fixes the others. The final levels are known
(`leximin`), and so is when each row is fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from levada.compat.gavel.solver.selfdual import ConstraintSets
from levada.core.types import Bools, Floats, Ints
from levada.solve.highs import NoSolution

#: A job that cannot rise by this factor and this amount is fixed.
_FACTOR, _MORE = 1.0001, 1e-5

Shares = TypeVar("Shares")


class FillingState(NamedTuple):
    """Minimum levels of rows, and which rows rise above them."""

    floor: Floats
    rising: Bools
    scale: Floats
    #: Levels divided by rates relative to a proportional share.
    relation: Floats

    def levels(self, c: Floats, row: Ints) -> ConstraintSets:
        """The constraints: each row has its minimum level; rising rows rise by t, for others t is unbounded.

        *c* are levels per unit of time, each for the *row* at the same position.
        """
        relative = c / self.relation[row]
        high = float(relative.max() * self.scale.max())
        rows = len(self.floor)
        return ConstraintSets(
            c=np.stack([relative, np.where(self.rising[row], c, 0.0)]),
            base=np.stack([self.floor / self.relation, np.where(self.rising, self.floor, -high)]),
            slope=np.stack([np.zeros(rows), np.ones(rows)]),
            has=np.ones((2, rows), np.bool_),
        )


def water_fill(
    final: Floats, scale: Floats, weight: Floats, solve: Callable[[FillingState], tuple[Shares, Floats]]
) -> Shares:
    """The shares of the last program for rows with these *final* levels; raises NoSolution if the first one fails.

    *solve* returns shares and the level of each row. Programs use the levels that were reached, not the optimal ones:
    they are slightly lower, which determines where the last one ends.
    """
    relation = scale / weight
    floor, rising = np.zeros(len(final)), np.ones(len(final), np.bool_)
    shares, levels = solve(FillingState(floor, rising, scale, relation))
    while True:
        exact = float(final[rising].min())
        fixed = rising & (final / relation < _FACTOR * exact / relation + _MORE)
        floor = np.where(rising, float(levels[rising].min()), floor)
        rising = rising & ~fixed
        if not rising.any() or not fixed.any():
            return shares
        try:
            shares, levels = solve(FillingState(floor, rising, scale, relation))
        except NoSolution:
            return shares
