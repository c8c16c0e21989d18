"""Entities that share the cluster, each with its own jobs.

The jobs of an entity share by weight or, if the entity is FIFO, the first job that can still rise takes everything.
Each job without entity (0) competes with its own weight.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.solve.problem import ShareProblem


def fifo_numbers(problem: ShareProblem, fifo: Bools) -> Ints:
    """(jobs,): a distinct number from 1 for each job of a FIFO entity, which gets its own row; else 0."""
    entity = problem.per_job(problem.entity)
    return np.where(fifo[entity] & (entity > 0), np.arange(1, len(entity) + 1), 0)


class Entities:
    """The entities of a problem in which each job of a FIFO entity has its own row."""

    def __init__(self, rows: ShareProblem, weight: Floats, fifo: Bools) -> None:
        """*weight* and *fifo* are indexed by the problem's `entity`."""
        self.rows, self.weight, self.count = rows, weight, rows.count
        self.is_fifo = fifo[rows.entity] & (rows.entity > 0)

    def slopes(self, active: Bools) -> Floats:
        """The slope of each row's level in t: its part of its entity's weight, divided by its scale."""
        rows, entity = self.rows, self.rows.entity
        weights = np.bincount(entity, rows.weight * self.count * active, len(self.weight))[entity]
        portion = np.divide(self.weight[entity] * rows.weight, weights, out=np.zeros(len(entity)), where=weights > 0)
        portion = np.where(entity == 0, rows.weight, portion) * active
        queued = np.flatnonzero(self.is_fifo & active)
        portion[self.is_fifo] = 0.0
        # Rows are in the order of their jobs: the first row of each entity is its next job.
        owners, first = np.unique(entity[queued], return_index=True)
        portion[queued[first]] = self.weight[owners]
        return portion / rows.scale

    def lowest(self, levels: Floats, runnable: Bools) -> float:
        """The lowest sum of levels of an entity, divided by its weight; without entities, the lowest level."""
        entity, entities = self.rows.entity, len(self.weight)
        sums = np.bincount(entity, levels * self.count, entities)[1:] / self.weight[1:]
        lowest = sums[np.bincount(entity[runnable], minlength=entities)[1:] > 0]
        if len(lowest):
            return float(lowest.min())
        return float(levels[runnable].min()) if runnable.any() else 0.0
