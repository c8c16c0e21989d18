"""Input and output of solvers."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from levada.core.types import Floats, Ints
from levada.solve.highs import Basis

Number = TypeVar("Number", bound=np.generic)

#: A share below this fraction of a job's total is set to 0: it would only cause migrations.
TRACE = 1e-9


class ShareProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs and capacities. A row is a job, or a class of equal jobs if `of` has the row of each job.

    Create one with `problem`, which fills in defaults.
    """

    rate: Floats  #: (rows, types): steps per second of the whole job at its scale; 0 = cannot run on the type
    scale: Floats  #: (rows,): GPUs that a job uses while it runs
    weight: Floats  #: (rows,): weight of a job, above 0
    entity: Ints  #: (rows,): owner of a job; 0 = none
    capacity: Floats  #: (types,): number of GPUs
    of: Ints | None = None  #: (jobs,): the row of each job; None = each row is one job

    @property
    def jobs(self) -> int:
        """The number of jobs."""
        return len(self.rate) if self.of is None else len(self.of)

    @property
    def count(self) -> Floats:
        """The number of jobs of each row."""
        if self.of is None:
            return np.ones(len(self.rate))
        return np.bincount(self.of, minlength=len(self.rate)).astype(np.float64)

    def per_job(self, rows: NDArray[Number]) -> NDArray[Number]:
        """Expand values of rows to values of jobs."""
        return rows if self.of is None else rows.take(self.of, axis=0)  # several times as fast as indexing


def problem(
    rate: ArrayLike,
    capacity: ArrayLike,
    *,
    scale: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    entity: ArrayLike | None = None,
    of: Ints | None = None,
) -> ShareProblem:
    """Create a problem from array-likes; by default scale and weight are 1 and entity is 0."""
    capacity = np.asarray(capacity, np.float64)
    rate = np.asarray(rate, np.float64).reshape(-1, len(capacity))
    rows = len(rate)
    return ShareProblem(
        rate=rate,
        scale=np.ones(rows) if scale is None else np.asarray(scale, np.float64),
        weight=np.ones(rows) if weight is None else np.asarray(weight, np.float64),
        entity=np.zeros(rows, np.int64) if entity is None else np.asarray(entity, np.int64),
        capacity=capacity,
        of=of,
    )


class WarmStart(msgspec.Struct, frozen=True):
    """Start of the next solve of a similar problem. It changes the run time, not the level."""

    basis: Basis | None = None  #: last basis of HiGHS; may be shorter, valid while rows keep their numbers
    prices: Floats | None = None  #: (n, types): prices of the last plans


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """Time shares of all jobs, their objective, and a bound on the optimum."""

    share: Floats  #: (jobs, types): fraction of time on each type; in packed problems, time alone
    level: float  #: the objective value of `share`
    bound: float  #: upper bound (lower bound if the objective is minimized) on the level
    prices: Floats  #: (types,): dual of each capacity, in the unit of the objective; 0 = not exhausted
    method: str  #: which method computed it
    alarm: str = ""  #: what went wrong; empty = no error
    warm: WarmStart | None = None
    levels: Floats | None = None  #: (jobs,): level of each job, if the objective has one
    pairs: Ints | None = None  #: (pairs, 2): jobs that share GPUs, in packed problems
    pair_share: Floats | None = None  #: (pairs, types): fraction of time that they share


def usable(problem: ShareProblem) -> Floats:
    """The rates, 0 on types without GPUs."""
    return np.where(problem.capacity > 0, problem.rate, 0.0)


def proportional(problem: ShareProblem) -> Floats:
    """The rate of each row with shares proportional to the capacities of the types."""
    total = problem.capacity.sum()
    return usable(problem) @ (problem.capacity / total) if total > 0 else np.zeros(len(problem.rate))


def normalised(problem: ShareProblem) -> Floats:
    """The level of each row per unit of time on each type: scale x rate / (weight x proportional rate).

    Rows that cannot run are 0.
    """
    reference = problem.weight * proportional(problem)
    factor = np.divide(problem.scale, reference, out=np.zeros_like(reference), where=reference > 0)
    return usable(problem) * factor[:, None]


def relative(problem: ShareProblem) -> Floats:
    """The rate of each row per unit of time on each type, over its proportional rate."""
    reference = proportional(problem)[:, None]
    return np.divide(usable(problem), reference, out=np.zeros_like(problem.rate), where=reference > 0)


def fit(share: Floats, gpus: Floats, capacity: Floats, trace: float = TRACE) -> Floats:
    """Remove negligible shares, and scale down where rounding exceeds time or capacity.

    *gpus* is the number of GPUs of a full share of each row.
    """
    share = np.where(share > trace * share.sum(axis=1)[:, None], share, 0.0)
    share /= np.maximum(share.sum(axis=1), 1.0)[:, None]
    use = gpus @ share
    share *= np.divide(capacity, use, out=np.ones_like(use), where=use > capacity)
    return share
