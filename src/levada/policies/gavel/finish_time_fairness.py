"""The largest finish-time ratio as small as possible: how long a job takes, over how long with 1/n of the cluster.

Source: Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020, in Gavel's form:

    (time since it came + steps left / rate) / (isolated time so far + steps left / isolated rate)

The isolated time so far grows, from call to call, by the steps made since over the isolated rate of the last call.
Weights do not count, but for the packed form, where rates are divided by them, as published.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import msgspec
import numpy as np

from levada.core.types import Floats
from levada.perf.model import ThroughputModel
from levada.policies.gavel.forms import (
    INTERIOR,
    LEXIMIN,
    able,
    by_reference,
    even_shares_of,
    pairs_of,
    problem_of,
    shares_of,
    sound,
    which_shares,
)
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.isolated import equal_shares
from levada.policies.gavel.share import Shares, Sharing
from levada.policies.protocol import Needs
from levada.solve.finish_time import finish_time
from levada.solve.interior import finish_time_interior
from levada.solve.interior_packed import finish_time_packed_interior
from levada.solve.packed import finish_time_packed


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A job at the last call: its isolated time so far, its isolated rate, and the steps it had made."""

    isolated_s: float
    rate: float
    steps: float


class FinishTimeState(msgspec.Struct, frozen=True, kw_only=True):
    """Accounts by job number."""

    accounts: dict[int, Account] = {}


class FinishTimeFairness(Sharing):
    """All types taken for the reference type."""

    name: ClassVar[str] = "finish_time_fairness"
    needs: ClassVar[Needs] = Needs.REMAINING | Needs.RATE
    objective: ClassVar[str] = "finish_time_rho_agnostic"

    def __init__(self, shares: str = LEXIMIN) -> None:
        self.which = which_shares(shares)

    def initial(self, seed: int) -> FinishTimeState:
        """Nobody has an account."""
        return FinishTimeState()

    def shares(
        self, instance: Instance, perf: ThroughputModel, state: FinishTimeState
    ) -> tuple[Shares, FinishTimeState]:
        """Shares with the smallest largest ratio."""
        rate = instance.rate if self.aware else by_reference(instance)
        isolated = (
            (rate * equal_shares(instance.capacity, instance.scale)).sum(axis=1) if len(instance) else np.zeros(0)
        )
        so_far, after = self._so_far(instance, isolated, state)
        with np.errstate(divide="ignore", invalid="ignore"):
            ideal = so_far + np.where(isolated > 0, instance.steps_left / isolated, 0.0)
        return self._solve(instance, rate, ideal), after

    def _so_far(self, instance: Instance, isolated: Floats, state: FinishTimeState) -> tuple[Floats, FinishTimeState]:
        so_far = np.zeros(len(instance))
        for row, number in enumerate(instance.number.tolist()):
            before = state.accounts.get(number)
            if before is not None:
                made = instance.steps_done[row] - before.steps
                so_far[row] = before.isolated_s + (made / before.rate if before.rate > 0 else 0.0)
        accounts = {
            number: Account(isolated_s=float(so_far[row]), rate=float(isolated[row]), steps=float(done))
            for row, (number, done) in enumerate(zip(instance.number.tolist(), instance.steps_done, strict=True))
        }
        return so_far, FinishTimeState(accounts=accounts)

    def _solve(self, instance: Instance, rate: Floats, ideal: Floats) -> Shares:
        published = self.which == INTERIOR
        problem = problem_of(instance, rate, weighted=False, published=published)
        given = (problem, instance.steps_left, instance.elapsed, ideal)
        best = partial(finish_time, *given)
        if not published:
            return shares_of(best()) if self.aware else even_shares_of(best(), instance)
        return shares_of(sound(partial(finish_time_interior, *given), best), able(instance))


class FinishTimeFairnessPerf(FinishTimeFairness):
    """Types as they are."""

    name: ClassVar[str] = "finish_time_fairness_perf"
    objective: ClassVar[str] = "finish_time_rho"
    aware: ClassVar[bool] = True


class FinishTimeFairnessPacked(FinishTimeFairnessPerf):
    """Types as they are, and two jobs may share GPUs."""

    name: ClassVar[str] = "finish_time_fairness_packed"
    objective: ClassVar[str] = "finish_time_rho_packed"
    packs: ClassVar[bool] = True

    def _solve(self, instance: Instance, rate: Floats, ideal: Floats) -> Shares:
        published = self.which == INTERIOR
        problem = problem_of(instance, rate / instance.weight[:, None], weighted=False, published=published)
        pairs, together = pairs_of(instance, problem)
        assert problem.of is not None
        weight = np.ones(len(problem.rate))
        weight[problem.of] = instance.weight
        together = together / weight[pairs][:, None, :]
        given = (problem, pairs, together, instance.steps_left, instance.elapsed, ideal)
        best = partial(finish_time_packed, *given)
        if not published:
            return shares_of(best())
        return shares_of(sound(partial(finish_time_packed_interior, *given), best), able(instance))
