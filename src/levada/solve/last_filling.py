"""The programs of water-filling as published, of which the last one's solution is the answer.

One program after the other raises all who can still rise by the same, and holds the others where they are. Which levels
they come to is known (`leximin`), and so is who is held when.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.solve.highs import NoAnswer
from levada.solve.selfdual import Levels

#: A job that cannot rise by this factor and this much is held where it is.
_FACTOR, _MORE = 1.0001, 1e-5

Shares = TypeVar("Shares")


class Filling(NamedTuple):
    """What each row has at least, and who rises above that."""

    floor: Floats
    rising: Bools
    scale: Floats
    #: Levels over rates that are relative to a proportional share.
    relation: Floats

    def levels(self, c: Floats, row: Ints) -> Levels:
        """What the program says of every row: it has its floor; and it rises by t, or t may be as large as can be.

        *c* are levels per unit of time, of the *row* that stands at the same place.
        """
        relative = c / self.relation[row]
        high = float(relative.max() * self.scale.max())
        rows = len(self.floor)
        return Levels(
            c=np.stack([relative, np.where(self.rising[row], c, 0.0)]),
            base=np.stack([self.floor / self.relation, np.where(self.rising, self.floor, -high)]),
            pace=np.stack([np.zeros(rows), np.ones(rows)]),
            has=np.ones((2, rows), np.bool_),
        )


def filled(final: Floats, scale: Floats, weight: Floats, solve: Callable[[Filling], tuple[Shares, Floats]]) -> Shares:
    """What the last program gives to rows that come to these *final* levels; raises NoAnswer if the first has no end.

    *solve* gives shares in some form, and the level of each row with them. Programs count on what they were given, not
    on what is best, and so do those after them: they are a hair short of it, which decides where the last one ends.
    """
    relation = scale / weight
    floor, rising = np.zeros(len(final)), np.ones(len(final), np.bool_)
    found, levels = solve(Filling(floor, rising, scale, relation))
    while True:
        exact = float(final[rising].min())
        held = rising & (final / relation < _FACTOR * exact / relation + _MORE)
        floor = np.where(rising, float(levels[rising].min()), floor)
        rising = rising & ~held
        if not rising.any() or not held.any():
            return found
        try:
            found, levels = solve(Filling(floor, rising, scale, relation))
        except NoAnswer:
            return found
