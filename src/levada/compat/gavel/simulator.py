"""Gavel's published simulator, for `compat.gavel.published_rounds`.

Time advances in rounds. Jobs make whole steps only, or their remaining ones. A round ends when its last job is done;
jobs that are done earlier leave their GPUs idle until then. Jobs that arrive during a round wait for its end. Starts,
stops and moves take no time. A job that makes no step on one of its GPUs has failed, and is dropped after five failures
in a row. If no job runs and none arrives, the mechanism decides again immediately.

Accounting is that of Gavel, too: a job is charged from the end of the previous round to its own end, so pauses between
rounds count as use, and each of two jobs that share GPUs pays for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from levada.compat.gavel.kernels import published_world as kernels
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
from levada.engine import Engine, run_policy
from levada.errors import LevadaError
from levada.perf import Beliefs
from levada.sim.arrivals import Arrivals
from levada.sim.completed import CompletedJobs
from levada.sim.metrics import Facts
from levada.sim.round_log import as_line, turns_on
from levada.sim.speeds import bind_truth

#: A job is dropped after this many consecutive rounds without progress.
MAX_FAILURES = 5
#: The run fails after this many consecutive rounds in which jobs wait and none runs.
_STUCK = 1_000


class GavelSimulator:
    """Runs an engine with the published mechanism until all jobs ended, or until the caller stops it."""

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
        """*prices* are in order of time."""
        self.engine, self.truth, self.arrivals, self.round_s = engine, truth, arrivals, round_s
        engine.undo_faults = False  # a fault ends the run
        self.on_round: Callable[[bytes], None] | None = None
        self.now = 0.0
        self.ended = CompletedJobs()
        self.rounds = self.decisions = self.preemptions = 0
        #: Sum of the numbers of jobs of all rounds.
        self.job_rounds = 0
        #: Number of jobs that ran in the previous round, and of those that keep their devices.
        self.lease_opportunities = self.lease_extensions = 0
        #: GPU-seconds by type, nan if none; and cost in $.
        self._used = np.full(len(engine.query.cluster.types), math.nan)
        self.cost = 0.0
        #: Running jobs, their devices and rates, and the work of each job: as in `kernels.published_world`.
        self._turns: Ints = np.zeros((5, 0), np.int64)
        self._devices: Ints = np.zeros(0, np.int64)
        self._rates: Floats = np.zeros((1, 0))
        self._work: Floats = np.zeros((3, 0))
        #: Number of running jobs, and of jobs that have not ended.
        self._jobs_in_turns = self._active = 0
        self._charged_to = 0.0
        self._priced_by: Mapping[str, float] | None = None
        self._price: Floats = np.zeros(0)
        self._prices = list(prices or ())
        self._check_every, self._idle_rounds = check_every, 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "on_round": None}

    @property
    def rejection(self) -> str | None:
        """Why the engine rejected the last decision of the policy; None if it did not."""
        query = self.engine.query
        return query.last_rejection if query.rejections else None

    def facts(self) -> Facts:
        """The counters so far."""
        types = self.engine.query.cluster.types
        return Facts(
            end_s=self.now,
            # Types that occur only in jobs follow those of the cluster, and are never used.
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
            lease_opportunities=self.lease_opportunities,
        )

    def run(self, done: Callable[[], bool] = lambda: False) -> None:
        """Simulate until *done* returns True or no event is left."""
        while not done() and self._next_round():
            pass
        self.check()

    def _next_round(self) -> bool:
        """End one round and start the next; False if no event is left."""
        query, next_at = self.engine.query, self.arrivals.next_at()
        events = self._finish()
        if not self._turns.shape[1]:
            if not self._active and next_at == math.inf:
                return False
            self.now = next_at if next_at < math.inf else math.nextafter(query.now, math.inf)
        first = query.next_number
        events += self._submit_arrivals()
        commands = self.engine.handle(*self._new_prices(), *events, Tick(at=self.now))
        if query.next_number > first:
            bind_truth(self.truth, query, np.arange(first, query.next_number))
        # Throughput models learn from pairs in every round.
        if self._execute(commands) or query.held.has_rows:
            self._update_turns()
        else:
            self._repeat_turns()
        self.rounds += 1
        if self.rounds % self._check_every == 0:
            self.check()
        self._idle_rounds = 0 if self._turns.shape[1] or self.arrivals.next_at() < math.inf else self._idle_rounds + 1
        if self._idle_rounds >= _STUCK:
            raise LevadaError(f"at {self.now:.0f} s {self._active} jobs wait and none can run")
        if self.on_round is not None:
            turns = turns_on(query, query.held, query.jobs.observed > 0)
            self.on_round(as_line(self.rounds - 1, self.now, turns, query.cluster))
        return True

    def check(self) -> None:
        """Raise if an invariant of the engine is violated, including conservation of jobs."""
        query = self.engine.query
        violations = query.violations()
        if violations or query.refused:
            raise AssertionError(f"at {self.now}: {violations[:3] or query.last_rejection}")

    def _submit_arrivals(self) -> list[Event]:
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
        """Advance the clock to the end of the round; returns its events."""
        if not self._turns.shape[1]:
            return []
        self.now, self.cost, done, done_at, dropped, continuing, steps = kernels.finish(
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
            # One event for all jobs that finish at the same time.
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
        if len(continuing):
            events.append(Progress(at=self.now, number=continuing, steps=steps))
        return events

    def _current_prices(self) -> Floats:
        """$ per GPU and hour by type; 1 if unknown."""
        query = self.engine.query
        if query.prices is not self._priced_by:
            self._priced_by = query.prices
            self._price = np.array([self._priced_by.get(name, 1.0) for name in query.cluster.types])
        return self._price

    # --- the beginning of a round -----------------------------------------------------------------------------------

    def _update_turns(self) -> None:
        """Update running jobs and their rates; jobs on the same devices share them."""
        query = self.engine.query
        held, jobs = query.held, query.jobs
        before, old_devices = self._turns, self._devices
        self._turns, self._devices = kernels.current_turns(
            held.owner, held.rows.copy(), query.cluster.type_of, jobs.number, jobs.desired, jobs.observed
        )
        first, second, kinds, sizes, _ = self._turns
        self._jobs_in_turns = len(first)
        if held.has_rows:
            self._jobs_in_turns += int(np.count_nonzero(second != kernels.ALONE))
            self._rates = self._rates_of_pairs(first, second, kinds, sizes)
        else:
            self._rates = self.truth.rates(first, kinds, sizes)[None]
        opportunities, extensions = kernels.leases(before, old_devices, self._turns, self._devices, self._work)
        self.lease_opportunities += opportunities
        self.lease_extensions += extensions
        self.job_rounds += self._jobs_in_turns

    def _repeat_turns(self) -> None:
        """Count a round in which the same jobs run on the same devices."""
        turns = self._turns.shape[1]
        self.lease_opportunities += turns
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

    def _execute(self, commands: list[Command]) -> bool:
        """Execute commands without advancing time; whether any job starts, stops, moves or ends."""
        changed = False
        while commands:
            reports: list[Event] = []
            for command in commands:
                match command:
                    case Decide():
                        self.decisions += 1
                        reports.append(run_policy(command, self.now))
                    case Apply():
                        plan, changed = command.plan, True
                        stops = plan.rows(OpKind.STOP)
                        others = (plan.kind != OpKind.STOP).nonzero()[0]
                        self.preemptions += len(stops)
                        for kind, rows in ((Released, stops), (Running, others)):
                            if len(rows):
                                columns = {"number": plan.number[rows], "generation": plan.generation[rows]}
                                reports.append(kind(at=self.now, **columns))
                    case JobsEnded():
                        self.ended.add(command)
                        changed = True
                    case _:
                        pass
            commands = self.engine.handle(*reports) if reports else []
        return changed
