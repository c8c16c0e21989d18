"""Shared by the LP policies: from instance to problem, from solution to shares.

Gavel's policies have up to three variants: agnostic to GPU types, aware of them (`_perf`), and aware with space
sharing, where two jobs share GPUs (`_packed`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.errors import BadInput
from levada.kernels import classes
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import Shares
from levada.solve.problem import ShareProblem, Solution, fit

#: Which of many optimal shares: best for the worst-off job, then for the next, and so on; or the ones that the
#: interior-point solver of the published policies found.
LEXIMIN, INTERIOR = "leximin", "interior"
#: Shares that are not optimal for the worst-off job: the most total speed, with a floor relative to leximin.
EFFICIENT = "efficient"
#: The alarm of a fallback solution.
_FALLBACK = "the requested shares could not be computed; using other shares with the same objective"
#: The type whose speed an agnostic policy assumes on all types.
REFERENCE_TYPE = "v100"
#: Of `_spread_evenly`: the most iterations, and the relative excess over capacity at which they end.
_ITERATIONS, _EXCESS = 500, 1e-9
#: With more excess than this at the end, the shares of the solver are returned.
_TOO_MUCH = 1e-3


def which_shares(value: Any, *more: str) -> str:
    """The option `shares`: leximin, interior or one of *more*; raises BadInput."""
    known = (LEXIMIN, INTERIOR, *more)
    if value not in known:
        raise BadInput.one(f"must be {', '.join(known[:-1])} or {known[-1]}, not {value!r}", "options.shares")
    return str(value)


def problem_of(
    instance: Instance, rate: Floats | None = None, *, weighted: bool = True, published: bool = False
) -> ShareProblem:
    """The instance as a problem over job classes; *rate* replaces the true rates.

    A job gets no time on a type where it may not run or that is too small for it. The proportional share it is compared
    with still covers the whole cluster, so its weight is corrected for the types left out. *published* policies do not
    check whether a job can run: they assign such time as well, and `shares_of` removes it.
    """
    believed = instance.rate if rate is None else rate
    truth, room = instance.rate, instance.capacity
    if published:
        truth, room = np.ones_like(believed), np.maximum(room, instance.scale.max(initial=0.0))
    # Equal rates are not enough: the joint rate of two jobs depends on their workloads.
    rates, scale, weight, entity, of = classes.rows_of(
        believed, truth, instance.scale, instance.weight, room, instance.alike, weighted
    )
    return ShareProblem(rate=rates, scale=scale, weight=weight, entity=entity, capacity=instance.capacity, of=of)


def can_run(instance: Instance) -> Bools:
    """Per job and type whether the job can ever run there."""
    return np.asarray((instance.rate > 0) & (instance.scale[:, None] <= instance.capacity))


def unit_rates(instance: Instance) -> Floats:
    """Rates for an agnostic policy: 1 on every type."""
    return np.ones_like(instance.rate)


def reference_rates(instance: Instance) -> Floats:
    """The rates on the reference type for every type, else on the first type.

    A job that cannot run on that type has its best rate.
    """
    names, types = instance.names, instance.columns()
    column = names.index(REFERENCE_TYPE) if REFERENCE_TYPE in names else types[0] if types else 0
    rate = instance.perf.rates(instance.number, np.array(column), instance.size)
    rate = np.where(rate > 0, rate, instance.rate.max(axis=1, initial=0.0))
    return np.repeat(rate[:, None], len(names), axis=1)


def pairs_of(instance: Instance, problem: ShareProblem) -> tuple[Ints, Floats]:
    """Pairs of classes that may share GPUs (problem rows), and their rates by type."""
    assert problem.of is not None
    jobs = np.argsort(problem.of, kind="stable")
    start = np.searchsorted(problem.of[jobs], np.arange(len(problem.rate)))
    count = np.bincount(problem.of, minlength=len(problem.rate))
    a, b = np.triu_indices(len(problem.rate))
    plain = np.zeros(len(problem.rate), bool)
    plain[problem.of] = instance.plain
    keep = (problem.scale[a] == problem.scale[b]) & ((a != b) | (count[a] > 1)) & plain[a] & plain[b]
    a, b = a[keep], b[keep]
    # For a pair within one class, its first and second job.
    first, second = jobs[start[a]], jobs[start[b] + (a == b)]
    types = np.arange(len(instance.capacity))
    together = instance.perf.pair_rates(
        instance.number[first][:, None],
        instance.number[second][:, None],
        types[None, :],
        instance.size[first][:, None],
    )
    together = np.where((problem.rate[a] > 0)[:, :, None] & (problem.rate[b] > 0)[:, :, None], together, 0.0)
    return np.stack([a, b], axis=1), together


def first_solved(*attempts: Callable[[], Solution]) -> Solution:
    """The first attempt that succeeds; if none does, the equal shares of the last one."""
    for tries, attempt in enumerate(attempts):
        solution = attempt()
        if solution.method != "equal":
            return solution if not tries else msgspec.structs.replace(solution, alarm=_FALLBACK)
    return solution


def best_shares(
    instance: Instance, best: Callable[[], Solution], interior: Callable[[], Solution], published: bool
) -> Shares:
    """The shares of *best*; if *published*, of *interior* with *best* as fallback."""
    if not published:
        return shares_of(best())
    return shares_of(first_solved(interior, best), can_run(instance))


def even_shares_of(solution: Solution, instance: Instance) -> Shares:
    """Shares of an agnostic policy: each job's time spread over its usable types."""
    share = _spread_evenly(solution.share, instance.scale, instance.capacity, can_run(instance))
    return Shares(share=share, objective=solution.level, alarm=solution.alarm)


def shares_of(solution: Solution, where: Bools | None = None) -> Shares:
    """A solution as shares, earlier row first in pairs; 0 outside *where*, if given."""
    share = solution.share if where is None else np.where(where, solution.share, 0.0)
    if solution.pairs is None or solution.pair_share is None:
        return Shares(share=share, objective=solution.level, alarm=solution.alarm)
    pair_share = solution.pair_share
    if where is not None:
        pair_share = np.where(where[solution.pairs].all(axis=1), pair_share, 0.0)
    return Shares(
        share=share,
        pairs=np.sort(solution.pairs, axis=1),
        pair_share=pair_share,
        objective=solution.level,
        alarm=solution.alarm,
    )


def _spread_evenly(share: Floats, gpus: Floats, capacity: Floats, able: Bools) -> Floats:
    """*share* (jobs, types) spread over the types that jobs are *able* to use.

    If only the total time of a job counts, a linear program has many optima, and a solver returns a vertex: all jobs on
    the first type. Here each type gets a part in proportion to its capacity. If jobs that cannot use all types would
    overfill one, other jobs use less of it (iterative proportional fitting: the feasible shares nearest to proportional
    ones in entropy). *gpus* is the GPUs of each running job. O(jobs x types) per iteration; one suffices if all jobs
    run on all types.
    """
    time = share.sum(axis=1)
    part = np.where(able, capacity, 0.0)
    runs = (part.sum(axis=1) > 0) & (time > 0)
    if not runs.any():
        return share
    part, time, need = part[runs], time[runs], gpus[runs]
    room = capacity - gpus[~runs] @ share[~runs]
    weight = np.ones(len(capacity))
    for _ in range(_ITERATIONS):
        spread = part * weight
        spread *= (time / spread.sum(axis=1))[:, None]
        use = need @ spread
        excess = np.divide(use, room, out=np.zeros_like(use), where=room > 0)
        if excess.max(initial=0.0) <= 1.0 + _EXCESS:
            break
        weight = np.minimum(weight / np.where(excess > 0, excess, 1.0), 1.0)
    if excess.max(initial=0.0) > 1.0 + _TOO_MUCH:
        return share
    result = share.copy()
    result[runs] = spread
    return fit(result, gpus, capacity)
