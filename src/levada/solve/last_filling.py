"""The last program of water-filling as published, whose solution is its answer.

One program after the other raises all who can still rise by the same, and holds the others where they are. Which levels
they come to is known (`leximin`), so only the last one need be solved to repeat where an interior-point solver ends.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.solve.selfdual import Levels

#: A job that cannot rise by this factor and this much is held where it is.
_FACTOR, _MORE = 1.0001, 1e-5
#: Levels are known but for this part.
_HAIR = 1e-9


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


def last_filling(final: Floats, scale: Floats, weight: Floats) -> Filling:
    """The last program for rows that come to these *final* levels."""
    relation = scale / weight
    floor, rising, level = np.zeros(len(final)), np.ones(len(final), np.bool_), 0.0
    while True:
        before, level = level, float(final[rising].min())
        held = rising & (final / relation < _FACTOR * level / relation + _MORE)
        if not (rising & ~held).any():
            return Filling(np.where(rising, before, floor) * (1 - _HAIR), rising, scale, relation)
        floor = np.where(held, level, floor)
        rising = rising & ~held
