"""Those who share the cluster: each passes its part on to its own jobs.

Inside an entity the jobs share by weight, or, where it serves them in turn (fifo), the first job that can still rise
takes all. Jobs of nobody (0) take part on their own, with their own weight.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.solve.problem import Problem


def turns(problem: Problem, in_turn: Bools) -> Ints:
    """(jobs,): a number of its own, from 1, for every job that is served in turn, so that it is a row of its own."""
    entity = problem.each(problem.entity)
    return np.where(in_turn[entity] & (entity > 0), np.arange(1, len(entity) + 1), 0)


class Entities:
    """The entities of a problem in which every job that is served in turn is a row of its own."""

    def __init__(self, rows: Problem, weight: Floats, in_turn: Bools) -> None:
        """*weight* and *in_turn* are indexed by the problem's `entity`."""
        self.rows, self.weight, self.count = rows, weight, rows.count
        self.turns = in_turn[rows.entity] & (rows.entity > 0)

    def pace(self, active: Bools) -> Floats:
        """How much each row rises with the common level: its part of its entity's weight, over its scale."""
        rows, entity = self.rows, self.rows.entity
        weights = np.bincount(entity, rows.weight * self.count * active, len(self.weight))[entity]
        portion = np.divide(self.weight[entity] * rows.weight, weights, out=np.zeros(len(entity)), where=weights > 0)
        portion = np.where(entity == 0, rows.weight, portion) * active
        waiting = np.flatnonzero(self.turns & active)
        portion[self.turns] = 0.0
        # Rows stand in the order of their jobs: the first of each entity is the one whose turn it is.
        owners, place = np.unique(entity[waiting], return_index=True)
        portion[waiting[place]] = self.weight[owners]
        return portion / rows.scale

    def lowest(self, levels: Floats, part: Bools) -> float:
        """The lowest sum of levels in an entity over its weight; without entities, the lowest level."""
        entity, entities = self.rows.entity, len(self.weight)
        sums = np.bincount(entity, levels * self.count, entities)[1:] / self.weight[1:]
        lowest = sums[np.bincount(entity[part], minlength=entities)[1:] > 0]
        if len(lowest):
            return float(lowest.min())
        return float(levels[part].min()) if part.any() else 0.0
