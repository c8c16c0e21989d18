"""What solvers take and give."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from levada.core.types import Floats, Ints
from levada.solve.highs import Basis

Number = TypeVar("Number", bound=np.generic)

#: A share below this part of all that a job gets is nothing: it would only move the job there and back.
TRACE = 1e-9


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that want to run on a cluster. A row is a job, or a class of equal jobs where `of` names the row of each.

    Make one with `problem`, which fills in what is left out.
    """

    rate: Floats  #: (rows, types): steps per second of the whole job at its scale; 0 = cannot run there
    scale: Floats  #: (rows,): GPUs that a job takes while it runs
    weight: Floats  #: (rows,): what a job is worth, above 0
    entity: Ints  #: (rows,): to whom a job belongs; 0 = nobody
    capacity: Floats  #: (types,): GPUs
    of: Ints | None = None  #: (jobs,): the row of each job; None: each row is one job

    @property
    def jobs(self) -> int:
        """How many jobs there are."""
        return len(self.rate) if self.of is None else len(self.of)

    @property
    def count(self) -> Floats:
        """How many jobs each row stands for."""
        if self.of is None:
            return np.ones(len(self.rate))
        return np.bincount(self.of, minlength=len(self.rate)).astype(np.float64)

    def each(self, rows: NDArray[Number]) -> NDArray[Number]:
        """What stands in the row of each job."""
        return rows if self.of is None else rows.take(self.of, axis=0)  # several times as fast as an index


def problem(
    rate: ArrayLike,
    capacity: ArrayLike,
    *,
    scale: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    entity: ArrayLike | None = None,
    of: Ints | None = None,
) -> Problem:
    """A problem from anything array-like; without a word, scale and weight are 1 and the entity is nobody."""
    capacity = np.asarray(capacity, np.float64)
    rate = np.asarray(rate, np.float64).reshape(-1, len(capacity))
    rows = len(rate)
    return Problem(
        rate=rate,
        scale=np.ones(rows) if scale is None else np.asarray(scale, np.float64),
        weight=np.ones(rows) if weight is None else np.asarray(weight, np.float64),
        entity=np.zeros(rows, np.int64) if entity is None else np.asarray(entity, np.int64),
        capacity=capacity,
        of=of,
    )


class Warm(msgspec.Struct, frozen=True):
    """Where the next solve of a similar problem may start. Only time depends on it, not the level."""

    basis: Basis | None = None  #: HiGHS's last basis; fits while rows keep their numbers, and may be shorter
    prices: Floats | None = None  #: (any, types): prices of the last plans


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of time for every job, what they reach, and a bound on what any shares could reach."""

    share: Floats  #: (jobs, types): fraction of time on each type; in packed problems, alone
    level: float  #: the objective that `share` reaches
    bound: float  #: no share reaches more (or, where less is better, less) than this
    prices: Floats  #: (types,): what a GPU of each type is worth, in the objective's unit; 0 = there is some to spare
    how: str  #: which method found it
    alarm: str = ""  #: what went wrong; empty = nothing
    warm: Warm | None = None
    levels: Floats | None = None  #: (jobs,): what each job reaches, where the objective speaks of each
    pairs: Ints | None = None  #: (pairs, 2): jobs that share GPUs, in packed problems
    pair_share: Floats | None = None  #: (pairs, types): fraction of time that they do


def usable(problem: Problem) -> Floats:
    """The rates, with 0 wherever a type has no GPU to run on."""
    return np.where(problem.capacity > 0, problem.rate, 0.0)


def proportional(problem: Problem) -> Floats:
    """The rate of each row when a job gets the share of every type that the type has of the cluster."""
    total = problem.capacity.sum()
    return usable(problem) @ (problem.capacity / total) if total > 0 else np.zeros(len(problem.rate))


def normalised(problem: Problem) -> Floats:
    """The level of each row per unit of time on each type: scale x rate / (weight x proportional rate).

    A row that can run nowhere is all zeros.
    """
    reference = problem.weight * proportional(problem)
    factor = np.divide(problem.scale, reference, out=np.zeros_like(reference), where=reference > 0)
    return usable(problem) * factor[:, None]


def relative(problem: Problem) -> Floats:
    """The rate of each row per unit of time on each type, over its proportional rate."""
    reference = proportional(problem)[:, None]
    return np.divide(usable(problem), reference, out=np.zeros_like(problem.rate), where=reference > 0)


def fit(share: Floats, gpus: Floats, capacity: Floats, trace: float = TRACE) -> Floats:
    """These shares without traces, and scaled down where rounding let them take more time or GPUs than there are.

    *gpus* is what a full share of each row takes.
    """
    share = np.where(share > trace * share.sum(axis=1)[:, None], share, 0.0)
    share /= np.maximum(share.sum(axis=1), 1.0)[:, None]
    use = gpus @ share
    share *= np.divide(capacity, use, out=np.ones_like(use), where=use > capacity)
    return share
