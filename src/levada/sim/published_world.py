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
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
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
from levada.core.types import Floats
from levada.engine import Engine, answer
from levada.errors import LevadaError
from levada.perf import Beliefs
from levada.policies.gavel.published import round_steps, steps_everywhere
from levada.sim.arrivals import Arrivals
from levada.sim.ended import Ended
from levada.sim.metrics import Facts
from levada.sim.speeds import bind_truth
from levada.sim.turns import Turn, as_line, turns_on
from levada.sim.use import HOUR_S

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
        #: GPU-seconds by number of type, and $.
        self.used: dict[int, float] = {}
        self.cost = 0.0
        self._turns: list[Turn] = []
        self._charged_to = 0.0
        self._left: dict[int, float] = {}
        self._failures: dict[int, int] = {}
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
            used_gpu_s={types[number]: seconds for number, seconds in sorted(self.used.items())},
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
        turns = self._turns
        happened = self._finish(turns)
        if not turns and not self._left and self.arrivals.next_at() == math.inf:
            return False
        if not turns:
            self.now = self.arrivals.next_at()
            if self.now == math.inf:
                self.now = math.nextafter(self.engine.query.now, math.inf)
        happened += self._arrive()
        first = self.engine.query.next_number
        commands = self.engine.handle(*self._new_prices(), *happened, Tick(at=self.now))
        bind_truth(self.truth, self.engine.query, np.arange(first, self.engine.query.next_number))
        self._obey(commands)
        self._turns = self._seen()
        self.rounds += 1
        self.job_rounds += sum(len(turn.numbers) for turn in self._turns)
        if self.rounds % self._check_every == 0:
            self.check()
        self._empty = 0 if self._turns or self.arrivals.next_at() < math.inf else self._empty + 1
        if self._empty >= _STUCK:
            raise LevadaError(f"at {self.now:.0f} s {len(self._left)} jobs wait and none will ever run")
        self._count_leases(turns, self._turns)
        if self.on_round is not None:
            self.on_round(as_line(self.rounds - 1, self.now, self._turns, self.engine.query.cluster))
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
            self._left |= {first + row: steps for row, steps in enumerate(batch.columns["steps"].tolist())}
            first += len(batch)
            events.append(JobsSubmitted(at=self.now, jobs=batch))
        return events

    def _new_prices(self) -> list[Event]:
        events: list[Event] = []
        while self._prices and self._prices[0].at <= self.now:
            events.append(self._prices.pop(0))
        return events

    # --- the end of a round ---------------------------------------------------------------------------------------

    def _finish(self, turns: list[Turn]) -> list[Event]:
        """What the end of the round brings; the clock goes there."""
        finished: list[tuple[float, int]] = []
        failed: list[int] = []
        end = self.now
        for turn in turns:
            steps = [
                round_steps(rate, self.round_s, self._left[number])
                for rate, number in zip(turn.rates, turn.numbers, strict=True)
            ]
            # Two that were believed to fit on one GPU, and do not, lose the round.
            fits = min(turn.rates) > 0
            lasts = [made / rate for made, rate in zip(steps, turn.rates, strict=True)] if fits else [self.round_s]
            finish = max(self.now + seconds for seconds in lasts)
            end = max(end, finish)
            if not fits or not all(steps_everywhere(made, len(turn.devices)) for made in steps):
                failed += turn.numbers if len(turn.numbers) == 1 else ()
                continue
            self._charge(turn, finish)
            for number, made in zip(turn.numbers, steps, strict=True):
                self._failures.pop(number, None)
                self._left[number] -= made
                if self._left[number] <= 0:
                    finished.append((finish, number))
        if turns:
            self._charged_to = end
        self.now = end
        return [*self._done(finished), *self._dropped(failed), *self._progress(turns)]

    def _charge(self, turn: Turn, finish: float) -> None:
        seconds = (finish - self._charged_to) * len(turn.devices)
        self.used[turn.type] = self.used.get(turn.type, 0.0) + seconds
        query = self.engine.query
        price = query.prices.get(query.cluster.types[turn.type], 1.0)
        self.cost += price * seconds / HOUR_S * len(turn.numbers)

    def _done(self, finished: list[tuple[float, int]]) -> list[Event]:
        """Jobs that are done, those of one moment in one event."""
        for _, number in finished:
            del self._left[number]
        finished.sort()
        cuts = [0, *(i for i, (a, b) in enumerate(pairwise(finished), 1) if a[0] != b[0]), len(finished)]
        return [
            JobsFinished(at=finished[start][0], number=np.array([number for _, number in finished[start:stop]]))
            for start, stop in pairwise(cuts)
            if stop > start
        ]

    def _dropped(self, failed: list[int]) -> list[Event]:
        jobs = self.engine.query.jobs
        events: list[Event] = []
        for number in failed:
            self._failures[number] = self._failures.get(number, 0) + 1
            if self._failures[number] >= MAX_FAILURES:
                del self._left[number]
                one = np.array([number])
                generation = jobs.generation[jobs.find(one)]
                events.append(JobsFailed(at=self.now, number=one, generation=generation))
        return events

    def _progress(self, turns: list[Turn]) -> list[Event]:
        jobs = self.engine.query.jobs
        numbers = np.array([n for turn in turns for n in turn.numbers if n in self._left], np.int64)
        if not len(numbers):
            return []
        left = np.array([self._left[number] for number in numbers.tolist()])
        return [Progress(at=self.now, number=numbers, steps=jobs.steps[jobs.find(numbers)] - left)]

    # --- the beginning of a round -----------------------------------------------------------------------------------

    def _seen(self) -> list[Turn]:
        """Who runs where now, and how fast; jobs on the same devices run together."""
        query = self.engine.query
        return self._with_rates(turns_on(query, query.held, query.jobs.observed > 0))

    def _with_rates(self, turns: list[Turn]) -> list[Turn]:
        found: dict[tuple[int, ...], Floats] = {}
        for members in (1, 2):
            some = [turn for turn in turns if len(turn.numbers) == members]
            if not some:
                continue
            numbers = np.array([turn.numbers for turn in some]).T
            kinds = np.array([turn.type for turn in some])
            jobs = self.engine.query.jobs
            sizes = jobs.desired[jobs.find(numbers[0])]
            if members == 1:
                rates = self.truth.rates(numbers[0], kinds, sizes)[:, None]
            else:
                rates = self.truth.pair_rates(numbers[0], numbers[1], kinds, sizes)
                if not self.engine.query.believes_in(self.truth):
                    self.engine.observe_pairs(numbers[0], numbers[1], kinds, sizes, rates)
            found |= {turn.numbers: row for turn, row in zip(some, rates, strict=True)}
        return [msgspec.structs.replace(turn, rates=tuple(found[turn.numbers].tolist())) for turn in turns]

    def _count_leases(self, before: list[Turn], turns: list[Turn]) -> None:
        now = {turn.numbers: turn.devices for turn in turns}
        alive = [turn for turn in before if any(number in self._left for number in turn.numbers)]
        self.lease_chances += len(alive)
        self.lease_extensions += sum(now.get(turn.numbers) == turn.devices for turn in alive)

    # --- the backend ----------------------------------------------------------------------------------------------

    def _obey(self, commands: list[Command]) -> None:
        """Decisions are made and operations done while no time passes."""
        while commands:
            reports: list[Event] = []
            for command in commands:
                match command:
                    case Decide():
                        self.decisions += 1
                        reports.append(answer(command, self.now))
                    case Apply():
                        plan = command.plan
                        stops = plan.rows(OpKind.STOP)
                        others = (plan.kind != OpKind.STOP).nonzero()[0]
                        self.preemptions += len(stops)
                        for kind, rows in ((Released, stops), (Running, others)):
                            if len(rows):
                                names = {"number": plan.number[rows], "generation": plan.generation[rows]}
                                reports.append(kind(at=self.now, **names))
                    case JobsEnded():
                        self.ended.add(command)
                    case _:
                        pass
            commands = self.engine.handle(*reports) if reports else []
