"""`--ideal`: follow shares exactly, as if time were infinitely divisible.

Between two arrivals or ends every job makes sum_j X_j T_j steps per second, alone and in pairs. There are no rounds,
placements or restarts: the result is a bound for mechanisms.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from levada.core.batch import JobBatch
from levada.core.cluster import Cluster
from levada.core.commands import JobsEnded
from levada.core.events import PricesChanged
from levada.core.job import Phase
from levada.core.reasons import Code
from levada.core.types import Floats, Ints
from levada.errors import LevadaError
from levada.perf import Beliefs
from levada.policies.gavel.instance import Instance
from levada.policies.gavel.share import AnySharePolicy, Shares
from levada.sim.arrivals import Arrivals
from levada.sim.completed import CompletedJobs
from levada.sim.metrics import Facts
from levada.sim.utilization import HOUR_S
from levada.tables.cluster_state import ClusterState

#: Ends that differ by less than this fraction of the time until them coincide.
_TOLERANCE = 1e-9


class IdealWorld:
    """Simulated cluster that follows the policy's shares exactly."""

    def __init__(
        self,
        cluster: Cluster,
        policy: AnySharePolicy,
        truth: Beliefs,
        arrivals: Arrivals,
        *,
        belief: Beliefs | None = None,
        seed: int = 0,
        prices: list[PricesChanged] | None = None,
    ) -> None:
        """*belief*: the speeds that the policy knows; None: the truth."""
        self.world = ClusterState(cluster)
        self.policy, self.state = policy, policy.initial(seed)
        self.truth, self.belief = truth, truth if belief is None else belief
        for model in self._models():
            model.attach(self.world.workloads, self.world.inventory.types)
        self.arrivals = arrivals
        self.on_round: Callable[[bytes], None] | None = None
        self.now = 0.0
        self.ended = CompletedJobs()
        self.decisions = 0
        #: GPU-seconds by number of type, and $.
        self.used: Floats = np.zeros(len(self.world.inventory.types))
        self.cost = 0.0
        self._started: dict[int, float] = {}
        self._prices = list(prices or ())
        self._rate: Floats = np.zeros(0)
        self._busy: Floats = np.zeros(len(self.world.inventory.types))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "on_round": None}

    def _models(self) -> tuple[Beliefs, ...]:
        return (self.truth,) if self.truth is self.belief else (self.truth, self.belief)

    @property
    def rounds(self) -> int:
        """Always 0."""
        return 0

    @property
    def rejection(self) -> None:
        """Always None: shares are never rejected."""

    def facts(self) -> Facts:
        """Return the counters so far."""
        types = self.world.inventory.types
        return Facts(
            end_s=self.now,
            used_gpu_s={types[number]: seconds for number, seconds in enumerate(self.used.tolist()) if number},
            cost=self.cost,
            decisions=self.decisions,
            resizes=sum(self.ended.resizes),
            moves=sum(self.ended.moves),
        )

    def run(self, done: Callable[[], bool] = lambda: False) -> None:
        """Simulate until *done* returns True or no events are left."""
        table = self.world.table
        while not done():
            slots = table.order
            left = table.steps[slots] - table.steps_done[slots]
            with np.errstate(divide="ignore"):
                ends = np.where(self._rate > 0, left / self._rate, math.inf)
            at = min(self.arrivals.next_at(), self._next_price(), self.now + float(ends.min(initial=math.inf)))
            if at == math.inf:
                if len(slots):
                    raise LevadaError(f"simulation is stuck at {self.now:.0f} s: {len(slots)} jobs can never start")
                return
            passed = at - self.now
            self._advance(passed, slots)
            self.now = at
            # The tolerance ends jobs that are done but for rounding.
            self._end(slots[ends <= passed * (1.0 + _TOLERANCE)])
            self._arrive()
            self._update_shares()

    def _next_price(self) -> float:
        return self._prices[0].at if self._prices else math.inf

    def _advance(self, seconds: float, slots: Ints) -> None:
        self.world.table.steps_done[slots] += self._rate * seconds
        used = self._busy * seconds
        self.used += used
        prices = np.array([self.world.prices.get(name, 1.0) for name in self.world.inventory.types])
        self.cost += float(used @ prices) / HOUR_S

    def _end(self, slots: Ints) -> None:
        """End jobs that have made all their steps."""
        if not len(slots):
            return
        table, numbers = self.world.table, self.world.table.number[slots]
        started = np.array([self._started.get(number, math.inf) for number in numbers.tolist()])
        zeros = np.zeros(len(slots), np.int64)
        self.ended.add(
            JobsEnded(
                number=numbers,
                id=tuple(self.world.ids[number] for number in numbers.tolist()),
                phase=np.full(len(slots), int(Phase.SUCCEEDED)),
                reason=np.full(len(slots), int(Code.FINISHED)),
                submitted=table.submitted[slots],
                first_started=started,
                finished=self.now,
                waiting_s=started - table.submitted[slots],
                running_s=self.now - started,
                gpu_seconds=np.full(len(slots), math.nan),
                restarts=zeros,
                resizes=zeros,
                moves=zeros,
                steps_done=table.steps_done[slots],
                reported=table.reported[slots],
                resized=table.resized[slots],
            )
        )
        self.world.remove_jobs(slots)

    def _arrive(self) -> None:
        while self._prices and self._prices[0].at <= self.now:
            self.world.set_prices(self._prices.pop(0).prices)
        for batch in self.arrivals.until(self.now):
            self._add_jobs(batch)

    def _add_jobs(self, batch: JobBatch) -> None:
        slots = self.world.add_jobs(batch)
        table = self.world.table
        for model in self._models():
            model.bind(table.number[slots], table.workload[slots])

    def _update_shares(self) -> None:
        """Compute new shares and the rate of every job."""
        snap = self.world.snapshot(self.now)
        self._rate, self._busy = np.zeros(len(snap)), np.zeros(len(self.world.inventory.types))
        if not len(snap):
            return
        instance = Instance(snap, self.belief)
        shares, self.state = self.policy.shares(instance, self.belief, self.state)
        self.decisions += 1
        self._rate = self._speeds(instance, shares)
        for number in instance.number[self._rate > 0].tolist():
            self._started.setdefault(number, self.now)
        self._busy = (shares.share * instance.scale[:, None]).sum(axis=0)
        if shares.pair_share is not None and len(shares.pairs):
            self._busy += (shares.pair_share * instance.scale[shares.pairs[:, 0]][:, None]).sum(axis=0)

    def _speeds(self, instance: Instance, shares: Shares) -> Floats:
        types = np.arange(shares.share.shape[1])
        rates = self.truth.rates(instance.number[:, None], types[None, :], instance.size[:, None])
        speed: Floats = (shares.share * np.where(instance.allowed, rates, 0.0)).sum(axis=1)
        if shares.pair_share is not None and len(shares.pairs):
            a, b = shares.pairs.T
            together = self.truth.pair_rates(
                instance.number[a][:, None], instance.number[b][:, None], types[None, :], instance.size[a][:, None]
            )
            for rows, side in ((a, 0), (b, 1)):
                np.add.at(speed, rows, (shares.pair_share * together[:, :, side]).sum(axis=1))
        return speed
