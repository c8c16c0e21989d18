"""Finish-time fairness: minimise the largest slowdown against 1/n of the cluster.

Source: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020, in Gavel's form of the ratio:

    (time since submission + steps left / rate) / (isolated time so far + steps left / isolated rate)

From call to call, the isolated time so far grows by the steps made since, over the isolated rate of the last call.
Weights are ignored, except in the packed variant, which divides rates by them, as published.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import msgspec
import numpy as np

from levada.compat.gavel.solver.interior import finish_time_interior
from levada.compat.gavel.solver.interior_packed import finish_time_packed_interior
from levada.core.types import Floats
from levada.perf.model import ThroughputModel
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.isolated import equal_shares
from levada.policies.gavel.lp_common import (
    INTERIOR,
    LEXIMIN,
    best_shares,
    can_run,
    even_shares_of,
    first_solved,
    pairs_of,
    problem_of,
    reference_rates,
    shares_of,
    which_shares,
)
from levada.policies.gavel.share import ShareDefaults, Shares
from levada.policies.protocol import Needs
from levada.solve.finish_time import finish_time
from levada.solve.packed import finish_time_packed
from levada.solve.problem import Solution


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A job at the last call: isolated time so far, isolated rate, and steps."""

    isolated_s: float
    rate: float
    steps: float


class FinishTimeState(msgspec.Struct, frozen=True, kw_only=True):
    """Accounts by job number."""

    accounts: dict[int, Account] = {}


class FinishTimeFairness(ShareDefaults):
    """Finish-time fairness with the speed of the reference type on every type."""

    name: ClassVar[str] = "finish_time_fairness"
    needs: ClassVar[Needs] = Needs.REMAINING | Needs.RATE
    objective: ClassVar[str] = "finish_time_rho_agnostic"

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def initial(self, seed: int) -> FinishTimeState:
        """No accounts."""
        return FinishTimeState()

    def shares(
        self, instance: Instance, perf: ThroughputModel, state: FinishTimeState
    ) -> tuple[Shares, FinishTimeState]:
        """Shares that minimise the largest ratio."""
        rate, published = reference_rates(instance), self.which == INTERIOR
        ideal, state = _ideal_durations(instance, rate, state)
        solution = _least_ratio(instance, rate, ideal, published)
        return (shares_of(solution, can_run(instance)) if published else even_shares_of(solution, instance)), state


class FinishTimeFairnessPerf(ShareDefaults):
    """Finish-time fairness with the measured speed on each GPU type."""

    name: ClassVar[str] = "finish_time_fairness_perf"
    needs: ClassVar[Needs] = Needs.REMAINING | Needs.RATE
    objective: ClassVar[str] = "finish_time_rho"
    aware: ClassVar[bool] = True

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def initial(self, seed: int) -> FinishTimeState:
        """No accounts."""
        return FinishTimeState()

    def shares(
        self, instance: Instance, perf: ThroughputModel, state: FinishTimeState
    ) -> tuple[Shares, FinishTimeState]:
        """Shares that minimise the largest ratio."""
        published = self.which == INTERIOR
        ideal, state = _ideal_durations(instance, instance.rate, state)
        solution = _least_ratio(instance, instance.rate, ideal, published)
        return shares_of(solution, can_run(instance) if published else None), state


class FinishTimeFairnessPacked(ShareDefaults):
    """Finish-time fairness with the speed on each GPU type and space sharing."""

    name: ClassVar[str] = "finish_time_fairness_packed"
    needs: ClassVar[Needs] = Needs.REMAINING | Needs.RATE
    objective: ClassVar[str] = "finish_time_rho_packed"
    aware: ClassVar[bool] = True
    packs: ClassVar[bool] = True

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def initial(self, seed: int) -> FinishTimeState:
        """No accounts."""
        return FinishTimeState()

    def shares(
        self, instance: Instance, perf: ThroughputModel, state: FinishTimeState
    ) -> tuple[Shares, FinishTimeState]:
        """Shares that minimise the largest ratio."""
        published = self.which == INTERIOR
        ideal, state = _ideal_durations(instance, instance.rate, state)
        problem = problem_of(instance, instance.rate / instance.weight[:, None], weighted=False, published=published)
        pairs, together = pairs_of(instance, problem)
        assert problem.of is not None
        weight = np.ones(len(problem.rate))
        weight[problem.of] = instance.weight
        together = together / weight[pairs][:, None, :]
        arguments = (problem, pairs, together, instance.steps_left, instance.elapsed, ideal)
        best, interior = partial(finish_time_packed, *arguments), partial(finish_time_packed_interior, *arguments)
        return best_shares(instance, best, interior, published), state


def _ideal_durations(instance: Instance, rate: Floats, state: FinishTimeState) -> tuple[Floats, FinishTimeState]:
    """The total duration of each job on 1/n of the cluster, and updated accounts."""
    isolated = (rate * equal_shares(instance.capacity, instance.scale)).sum(axis=1) if len(instance) else np.zeros(0)
    so_far: list[float] = []
    accounts: dict[int, Account] = {}
    columns = instance.number.tolist(), isolated.tolist(), instance.steps_done.tolist()
    for number, isolated_rate, steps in zip(*columns, strict=True):
        before, spent = state.accounts.get(number), 0.0
        if before is not None:
            spent = before.isolated_s + ((steps - before.steps) / before.rate if before.rate > 0 else 0.0)
        so_far.append(spent)
        accounts[number] = Account(isolated_s=spent, rate=isolated_rate, steps=steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        ideal = np.array(so_far) + np.where(isolated > 0, instance.steps_left / isolated, 0.0)
    return ideal, FinishTimeState(accounts=accounts)


def _least_ratio(instance: Instance, rate: Floats, ideal: Floats, published: bool) -> Solution:
    problem = problem_of(instance, rate, weighted=False, published=published)
    arguments = (problem, instance.steps_left, instance.elapsed, ideal)
    best = partial(finish_time, *arguments)
    return first_solved(partial(finish_time_interior, *arguments), best) if published else best()
