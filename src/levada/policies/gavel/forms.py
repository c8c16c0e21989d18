"""What the LP policies have in common: three ways to look at an instance, and the way back from a solution.

Every policy of Gavel comes in up to three forms: one that does not know how types differ, one that does (`_perf`), and
one that also lets two jobs share GPUs (`_packed`).
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
from levada.solve.even import evenly
from levada.solve.problem import Problem, Solution

#: Which of many optimal shares: the best for the worst-off, then for the next, and so on; or those that the
#: interior-point solver of the published policies found.
LEXIMIN, INTERIOR = "leximin", "interior"
#: Or shares that are not optimal for the worst-off: the most speed in all while nobody falls far below leximin.
EFFICIENT = "efficient"
#: What solutions say that stand in for others.
_SECOND_CHOICE = "the shares that were wanted could not be found; others with the same objective stand in for them"
#: The type whose speed stands for all others where a policy does not know how types differ.
REFERENCE_TYPE = "v100"


def which_shares(value: Any, *more: str) -> str:
    """The option `shares`, one of the usual two or of *more*; raises BadInput."""
    known = (LEXIMIN, INTERIOR, *more)
    if value not in known:
        raise BadInput.one(f"must be {', '.join(known[:-1])} or {known[-1]}, not {value!r}", "options.shares")
    return str(value)


def problem_of(
    instance: Instance, rate: Floats | None = None, *, weighted: bool = True, published: bool = False
) -> Problem:
    """The instance as a problem over classes of equal jobs; *rate* is what a policy believes, instead of the truth.

    A job gets no time on a type where it may not run or that is too small for it. What it is compared with stays what
    the policy believes about the whole cluster, so its weight makes up for what the problem leaves out. *Published*
    policies do not ask whether it can run: they give it time there in vain, which `shares_of` then takes away.
    """
    believed = instance.rate if rate is None else rate
    truth, room = instance.rate, instance.capacity
    if published:
        truth, room = np.ones_like(believed), np.maximum(room, instance.scale.max(initial=0.0))
    # Equal rates are not enough: what two jobs reach together depends on what they are.
    rates, scale, weight, entity, of = classes.rows_of(
        believed, truth, instance.scale, instance.weight, room, instance.alike, weighted
    )
    return Problem(rate=rates, scale=scale, weight=weight, entity=entity, capacity=instance.capacity, of=of)


def able(instance: Instance) -> Bools:
    """Per job and type whether it can ever run there."""
    return np.asarray((instance.rate > 0) & (instance.scale[:, None] <= instance.capacity))


def all_alike(instance: Instance) -> Floats:
    """Rates for a policy that does not know how types differ: 1 everywhere."""
    return np.ones_like(instance.rate)


def by_reference(instance: Instance) -> Floats:
    """Rates for a policy that takes all types for the reference type (the cluster's first one, if that is missing).

    A job that does not run on that type is taken at its best.
    """
    names, types = instance.names, instance.columns()
    column = names.index(REFERENCE_TYPE) if REFERENCE_TYPE in names else types[0] if types else 0
    rate = instance.perf.rates(instance.number, np.array(column), instance.size)
    rate = np.where(rate > 0, rate, instance.rate.max(axis=1, initial=0.0))
    return np.repeat(rate[:, None], len(names), axis=1)


def pairs_of(instance: Instance, problem: Problem) -> tuple[Ints, Floats]:
    """Classes that may share GPUs (rows of the problem), and what both reach by type then."""
    assert problem.of is not None
    jobs = np.argsort(problem.of, kind="stable")
    start = np.searchsorted(problem.of[jobs], np.arange(len(problem.rate)))
    count = np.bincount(problem.of, minlength=len(problem.rate))
    a, b = np.triu_indices(len(problem.rate))
    plain = np.zeros(len(problem.rate), bool)
    plain[problem.of] = instance.plain
    keep = (problem.scale[a] == problem.scale[b]) & ((a != b) | (count[a] > 1)) & plain[a] & plain[b]
    a, b = a[keep], b[keep]
    # Of two jobs of one class, the first and the second.
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


def sound(*attempts: Callable[[], Solution]) -> Solution:
    """The first of these solutions that was found; where none was, the equal shares that the last one ended in."""
    for number, attempt in enumerate(attempts):
        solution = attempt()
        if solution.how != "equal":
            return solution if not number else msgspec.structs.replace(solution, alarm=_SECOND_CHOICE)
    return solution


def even_shares_of(solution: Solution, instance: Instance) -> Shares:
    """A solution of a policy that does not know how types differ: each job's time is spread over all it can use."""
    share = evenly(solution.share, instance.scale, instance.capacity, able(instance))
    return Shares(share=share, objective=solution.level, alarm=solution.alarm)


def shares_of(solution: Solution, where: Bools | None = None) -> Shares:
    """A solution as shares; pairs with the earlier row first. *Where* jobs can run is asked for published ones only."""
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
