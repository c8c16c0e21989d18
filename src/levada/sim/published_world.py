"""The world of Gavel's published simulator, which goes with its mechanism (`policies.gavel.published`).

Time goes in rounds. Each job makes whole steps only, or what is left; a round ends when its last job is through, and
those that are done earlier leave their GPUs idle until then. Jobs that arrive meanwhile wait for the end of the
round. Starts, stops and moves take no time. A job that makes no step on one of its GPUs has failed, and is dropped when
that happens five times in a row. Where nothing runs and nobody comes, the mechanism is asked again at once.

Its accounts are Gavel's, too: a job is charged from the end of the round before to its own end, so that a pause between
rounds counts as use, and of two jobs that share GPUs each pays for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from levada.core.commands import Apply, Command, Decide, JobsEnded
from levada.core.events import (
    Event,
    JobsFailed,
    JobsFinished,
    JobsSubmitted,
    PricesChanged,
    Progress,
    Released,
    Running,
    Tick,
)
from levada.core.plan import OpKind
from levada.core.types import Floats, Ints
from levada.engine import Engine, answer
from levada.errors import LevadaError
from levada.kernels import published_world as kernels
from levada.perf import Beliefs
from levada.sim.arrivals import Arrivals
from levada.sim.ended import Ended
from levada.sim.metrics import Facts
from levada.sim.speeds import bind_truth
from levada.sim.turns import as_line, turns_on

#: A job is dropped after so many rounds in a row without progress.
MAX_FAILURES = 5
#: After so many rounds in a row in which nobody runs though jobs wait, nobody ever will.
_STUCK = 1_000


class PublishedWorld:
    """Runs an engine with the published mechanism until all jobs are over, or until somebody says that it is enough."""

    def __init__(
        self,
        engine: Engine,
        truth: Beliefs,
        arrivals: Arrivals,
        *,
        round_s: float = 360.0,
        prices: list[PricesChanged] | None = None,
        check_every: int = 1,
    ) -> None:
        """*prices* by time."""
        self.engine, self.truth, self.arrivals, self.round_s = engine, truth, arrivals, round_s
        engine.undo_faults = False  # a run with a fault has no result
        self.on_round: Callable[[bytes], None] | None = None
        self.now = 0.0
        self.ended = Ended()
        self.rounds = self.decisions = self.preemptions = 0
        #: Jobs in all rounds, each once in each.
        self.job_rounds = 0
        #: Jobs that ran in the round before, and those of them that keep their devices now.
        self.lease_chances = self.lease_extensions = 0
        #: GPU-seconds by type, nan where none was used; and $.
        self._used = np.full(len(engine.query.cluster.types), math.nan)
        self.cost = 0.0
        #: Who runs where and how fast, and the work of each job: as in `kernels.published_world`.
        self._turns: Ints = np.zeros((5, 0), np.int64)
        self._devices: Ints = np.zeros(0, np.int64)
        self._rates: Floats = np.zeros((1, 0))
        self._work: Floats = np.zeros((3, 0))
        #: Jobs that run now, and those that are not over.
        self._jobs_in_turns = self._active = 0
        self._charged_to = 0.0
        self._priced: Mapping[str, float] | None = None
        self._price: Floats = np.zeros(0)
        self._prices = list(prices or ())
        self._check_every, self._empty = check_every, 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "on_round": None}

    @property
    def rejection(self) -> str | None:
        """Why the engine refused the last decision of the policy; None if it did not."""
        query = self.engine.query
        return query.last_rejection if query.rejections else None

    def facts(self) -> Facts:
        """What was counted up to now."""
        types = self.engine.query.cluster.types
        return Facts(
            end_s=self.now,
            # Types that only jobs name come after those of the cluster, and are never used.
            used_gpu_s={
                name: seconds
                for name, seconds in zip(types, self._used.tolist(), strict=False)
                if not math.isnan(seconds)
            },
            cost=self.cost,
            rounds=self.rounds,
            job_rounds=self.job_rounds,
            decisions=self.decisions,
            preemptions=self.preemptions,
            resizes=sum(self.ended.resizes),
            moves=sum(self.ended.moves),
            lease_extensions=self.lease_extensions,
            lease_opportunities=self.lease_chances,
        )

    def run(self, done: Callable[[], bool] = lambda: False) -> None:
        """Goes on until *done* says so, or nothing is left to happen."""
        while not done() and self._next_round():
            pass
        self.check()

    def _next_round(self) -> bool:
        """Ends one round and begins the next; False when there is nothing to do any more."""
        query, next_at = self.engine.query, self.arrivals.next_at()
        happened = self._finish()
        if not self._turns.shape[1]:
            if not self._active and next_at == math.inf:
                return False
            self.now = next_at if next_at < math.inf else math.nextafter(query.now, math.inf)
        first = query.next_number
        happened += self._arrive()
        commands = self.engine.handle(*self._new_prices(), *happened, Tick(at=self.now))
        if query.next_number > first:
            bind_truth(self.truth, query, np.arange(first, query.next_number))
        # Beliefs learn from pairs in every round.
        if self._obey(commands) or query.held.has_rows:
            self._see()
        else:
            self._repeat()
        self.rounds += 1
        if self.rounds % self._check_every == 0:
            self.check()
        self._empty = 0 if self._turns.shape[1] or self.arrivals.next_at() < math.inf else self._empty + 1
        if self._empty >= _STUCK:
            raise LevadaError(f"at {self.now:.0f} s {self._active} jobs wait and none will ever run")
        if self.on_round is not None:
            turns = turns_on(query, query.held, query.jobs.observed > 0)
            self.on_round(as_line(self.rounds - 1, self.now, turns, query.cluster))
        return True

    def check(self) -> None:
        """Raises where a rule of the engine's state is broken, conservation of jobs among them."""
        query = self.engine.query
        broken = query.violations()
        if broken or query.refused:
            raise AssertionError(f"at {self.now}: {broken[:3] or query.last_rejection}")

    def _arrive(self) -> list[Event]:
        events: list[Event] = []
        first = self.engine.query.next_number
        for batch in self.arrivals.until(self.now):
            stop = first + len(batch)
            if stop > self._work.shape[1]:
                self._work = np.concatenate([self._work, np.zeros((3, stop))], axis=1)
            self._work[: kernels.FAILURES, first:stop] = batch.columns["steps"]
            self._active += len(batch)
            first = stop
            events.append(JobsSubmitted(at=self.now, jobs=batch))
        return events

    def _new_prices(self) -> list[Event]:
        events: list[Event] = []
        while self._prices and self._prices[0].at <= self.now:
            events.append(self._prices.pop(0))
        return events

    # --- the end of a round ---------------------------------------------------------------------------------------

    def _finish(self) -> list[Event]:
        """What the end of the round brings; the clock goes there."""
        if not self._turns.shape[1]:
            return []
        self.now, self.cost, done, done_at, dropped, goes_on, steps = kernels.finish(
            self._turns,
            self._rates,
            self._work,
            self._used,
            self._current_prices(),
            self.now,
            self._charged_to,
            self.round_s,
            self.cost,
            MAX_FAILURES,
        )
        self._charged_to = self.now
        events: list[Event] = []
        if len(done):
            # Jobs that are done at one moment are one event.
            cuts = (np.flatnonzero(np.diff(done_at)) + 1).tolist()
            events += [
                JobsFinished(at=float(done_at[start]), number=done[start:stop])
                for start, stop in pairwise([0, *cuts, len(done)])
            ]
        if len(dropped):
            jobs = self.engine.query.jobs
            generation = jobs.generation.take(jobs.find(dropped))
            events += [
                JobsFailed(at=self.now, number=dropped[i : i + 1], generation=generation[i : i + 1])
                for i in range(len(dropped))
            ]
        self._active -= len(done) + len(dropped)
        if len(goes_on):
            events.append(Progress(at=self.now, number=goes_on, steps=steps))
        return events

    def _current_prices(self) -> Floats:
        """$ per GPU and hour by type, 1 where none is known."""
        query = self.engine.query
        if query.prices is not self._priced:
            self._priced = query.prices
            self._price = np.array([self._priced.get(name, 1.0) for name in query.cluster.types])
        return self._price

    # --- the beginning of a round -----------------------------------------------------------------------------------

    def _see(self) -> None:
        """Who runs where now, and how fast; jobs on the same devices run together."""
        query = self.engine.query
        held, jobs = query.held, query.jobs
        before, old_devices = self._turns, self._devices
        self._turns, self._devices = kernels.see(
            held.owner, held.rows.copy(), query.cluster.type_of, jobs.number, jobs.desired, jobs.observed
        )
        first, second, kinds, sizes, _ = self._turns
        self._jobs_in_turns = len(first)
        if held.has_rows:
            self._jobs_in_turns += int(np.count_nonzero(second != kernels.ALONE))
            self._rates = self._rates_of_pairs(first, second, kinds, sizes)
        else:
            self._rates = self.truth.rates(first, kinds, sizes)[None]
        chances, kept = kernels.leases(before, old_devices, self._turns, self._devices, self._work)
        self.lease_chances += chances
        self.lease_extensions += kept
        self.job_rounds += self._jobs_in_turns

    def _repeat(self) -> None:
        """The same jobs run where they ran."""
        turns = self._turns.shape[1]
        self.lease_chances += turns
        self.lease_extensions += turns
        self.job_rounds += self._jobs_in_turns

    def _rates_of_pairs(self, first: Ints, second: Ints, kinds: Ints, sizes: Ints) -> Floats:
        rates = np.zeros((2, len(first)))
        alone = second == kernels.ALONE
        rates[0, alone] = self.truth.rates(first[alone], kinds[alone], sizes[alone])
        if not alone.all():
            a, b, kinds, sizes = (column[~alone] for column in (first, second, kinds, sizes))
            both = self.truth.pair_rates(a, b, kinds, sizes)
            if not self.engine.query.believes_in(self.truth):
                self.engine.observe_pairs(a, b, kinds, sizes, both)
            rates[:, ~alone] = both.T
        return rates

    # --- the backend ----------------------------------------------------------------------------------------------

    def _obey(self, commands: list[Command]) -> bool:
        """Decisions are made and operations done while no time passes; whether any job starts, stops, moves or ends."""
        moved = False
        while commands:
            reports: list[Event] = []
            for command in commands:
                match command:
                    case Decide():
                        self.decisions += 1
                        reports.append(answer(command, self.now))
                    case Apply():
                        plan, moved = command.plan, True
                        stops = plan.rows(OpKind.STOP)
                        others = (plan.kind != OpKind.STOP).nonzero()[0]
                        self.preemptions += len(stops)
                        for kind, rows in ((Released, stops), (Running, others)):
                            if len(rows):
                                names = {"number": plan.number[rows], "generation": plan.generation[rows]}
                                reports.append(kind(at=self.now, **names))
                    case JobsEnded():
                        self.ended.add(command)
                        moved = True
                    case _:
                        pass
            commands = self.engine.handle(*reports) if reports else []
        return moved
