"""The world of Gavel's published simulator, which goes with its mechanism (`policies.gavel.published`).

Time goes in rounds. Each job makes whole steps only, or what is left; a round ends when its last job is through, and
those that are done earlier leave their GPUs idle until then. Jobs that arrive meanwhile wait for the end of the
round. Starts, stops and moves take no time. A job that makes no step on one of its GPUs has failed, and is dropped when
that happens five times in a row. Where nothing runs and nobody comes, the mechanism is asked again at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec
import numpy as np

from levada.core.batch import JobBatch
from levada.core.commands import Apply, Command, Decide, JobsEnded
from levada.core.events import Event, JobsFailed, JobsFinished, JobsSubmitted, Progress, Released, Running, Tick
from levada.core.plan import OpKind
from levada.core.plane import DEVICE
from levada.core.types import Ints
from levada.engine import Engine, answer
from levada.perf import ThroughputModel
from levada.policies.gavel.published import round_steps, steps_everywhere

#: A job is dropped after so many rounds in a row without progress.
MAX_FAILURES = 5


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One job, or two that share devices, in one round."""

    numbers: tuple[int, ...]
    type: int
    devices: tuple[int, ...]


class PublishedWorld:
    """Runs an engine with the published mechanism until all jobs are over, or a given set of them."""

    def __init__(
        self,
        engine: Engine,
        truth: ThroughputModel,
        arrivals: Arrivals,
        *,
        round_s: float = 360.0,
        after_each: Callable[[float, list[Turn]], None] = lambda now, turns: None,
    ) -> None:
        self.engine, self.truth, self.arrivals, self.round_s = engine, truth, arrivals, round_s
        self.now = 0.0
        self.ended: list[JobsEnded] = []
        self.rounds = self.decisions = 0
        #: Jobs that ran in the round before, and those of them that keep their devices now.
        self.lease_chances = self.lease_extensions = 0
        self._after_each = after_each
        self._left: dict[int, float] = {}
        self._failures: dict[int, int] = {}

    def run(self, done: Callable[[], bool]) -> None:
        """Goes on until *done* says so, or nothing is left to happen."""
        turns: list[Turn] = []
        while not done():
            happened = self._finish(turns)
            if not turns and not self._left and self.arrivals.next_at() == math.inf:
                return
            if not turns:
                self.now = min(self.arrivals.next_at(), math.inf)
                if self.now == math.inf:
                    self.now = math.nextafter(self.engine.state.now, math.inf)
            happened += self._arrive()
            self._obey(self.engine.handle(*happened, Tick(at=self.now)))
            if self.engine.state.refused:
                raise AssertionError(self.engine.state.last_rejection)
            before, turns = turns, self._turns()
            self.rounds += 1
            self._count_leases(before, turns)
            self._after_each(self.now, turns)

    def _arrive(self) -> list[Event]:
        batch = self.arrivals.until(self.now)
        if batch is None:
            return []
        first = self.engine.state.world.next_number
        self._left |= {first + row: float(steps) for row, steps in enumerate(batch.columns["steps"])}
        return [JobsSubmitted(at=self.now, jobs=batch)]

    def _finish(self, turns: list[Turn]) -> list[Event]:
        """What the end of the round brings; the clock goes there."""
        finished: list[tuple[float, int]] = []
        failed: list[int] = []
        end = self.now
        for turn in turns:
            rates = self._rates(turn)
            steps = [
                round_steps(rate, self.round_s, self._left[number])
                for rate, number in zip(rates, turn.numbers, strict=True)
            ]
            finish = max(self.now + made / rate for made, rate in zip(steps, rates, strict=True))
            end = max(end, finish)
            if not all(steps_everywhere(made, len(turn.devices)) for made in steps):
                failed += turn.numbers if len(turn.numbers) == 1 else ()
                continue
            for number, made in zip(turn.numbers, steps, strict=True):
                self._failures.pop(number, None)
                self._left[number] -= made
                if self._left[number] <= 0:
                    finished.append((finish, number))
        self.now = end
        return [*self._done(finished), *self._dropped(failed), *self._progress(turns)]

    def _done(self, finished: list[tuple[float, int]]) -> list[Event]:
        for _, number in finished:
            del self._left[number]
        return [JobsFinished(at=at, number=np.array([number])) for at, number in sorted(finished)]

    def _dropped(self, failed: list[int]) -> list[Event]:
        table = self.engine.state.world.table
        events: list[Event] = []
        for number in failed:
            self._failures[number] = self._failures.get(number, 0) + 1
            if self._failures[number] >= MAX_FAILURES:
                del self._left[number]
                one = np.array([number])
                generation = table.generation[table.find(one)]
                events.append(JobsFailed(at=self.now, number=one, generation=generation))
        return events

    def _progress(self, turns: list[Turn]) -> list[Event]:
        table = self.engine.state.world.table
        numbers = np.array([n for turn in turns for n in turn.numbers if n in self._left], np.int64)
        if not len(numbers):
            return []
        left = np.array([self._left[int(number)] for number in numbers])
        return [Progress(at=self.now, number=numbers, steps=table.steps[table.find(numbers)] - left)]

    def _rates(self, turn: Turn) -> list[float]:
        table = self.engine.state.world.table
        numbers, kind = np.array(turn.numbers), np.array([turn.type])
        size = table.desired[table.find(numbers[:1])]
        if len(numbers) == 1:
            return [float(self.truth.rates(numbers, kind, size)[0])]
        return [float(rate) for rate in self.truth.pair_rates(numbers[:1], numbers[1:], kind, size)[0]]

    def _turns(self) -> list[Turn]:
        """Who runs where now; jobs on the same devices run together."""
        world = self.engine.state.world
        table = world.table
        on: dict[tuple[int, ...], list[int]] = {}
        for slot in table.order[table.observed[table.order] > 0]:
            devices = tuple(sorted(int(d) for d in world.places(world.held, int(slot))[DEVICE]))
            on.setdefault(devices, []).append(int(slot))
        turns = []
        for devices, slots in on.items():
            numbers = tuple(sorted(int(table.number[slot]) for slot in slots))
            turns.append(Turn(numbers=numbers, type=int(table.held_type[slots[0]]), devices=devices))
        return turns

    def _count_leases(self, before: list[Turn], turns: list[Turn]) -> None:
        now = {turn.numbers: turn.devices for turn in turns}
        alive = [turn for turn in before if any(number in self._left for number in turn.numbers)]
        self.lease_chances += len(alive)
        self.lease_extensions += sum(now.get(turn.numbers) == turn.devices for turn in alive)

    # --- the backend ----------------------------------------------------------------------------------------------

    def _obey(self, commands: list[Command]) -> None:
        """Decisions are made and operations done while no time passes."""
        for command in commands:
            match command:
                case Decide():
                    self.decisions += 1
                    self._obey(self.engine.handle(answer(command, self.now)))
                case Apply():
                    plan = command.plan
                    stops = plan.rows(OpKind.STOP)
                    others = (plan.kind != OpKind.STOP).nonzero()[0]
                    self._tell(Released, plan.number[stops], plan.generation[stops])
                    self._tell(Released, plan.number[others], plan.generation[others])
                    self._tell(Running, plan.number[others], plan.generation[others])
                case JobsEnded():
                    self.ended.append(command)
                case _:
                    pass

    def _tell(self, kind: type[Released] | type[Running], number: Ints, generation: Ints) -> None:
        if len(number):
            self._obey(self.engine.handle(kind(at=self.now, number=number, generation=generation)))


class Arrivals:
    """Jobs in the order of their arrival, from a list."""

    def __init__(self, jobs: JobBatch) -> None:
        self.jobs = jobs
        self._at = 0

    def next_at(self) -> float:
        """When the next job comes; infinite when none does."""
        times = self.jobs.columns["submitted"]
        return float(times[self._at]) if self._at < len(times) else math.inf

    def until(self, now: float) -> JobBatch | None:
        """All that have come by *now* and were not told before."""
        times = self.jobs.columns["submitted"]
        stop = int(np.searchsorted(times, now, side="right"))
        if stop <= self._at:
            return None
        rows = list(range(self._at, stop))
        self._at = stop
        return self.jobs.rows(rows)
