"""One run: jobs arrive, the engine decides, operations take their time, jobs finish.

The clock goes to whatever happens next. The simulation owns the truth (how fast jobs really run where they are, how
long operations take, when machines break); policies see only what the engine believes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec
import numpy as np

from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.cluster import Foreign
from levada.core.commands import Apply, BindPods, Command, Decide, JobsEnded, Wake
from levada.core.decision import Bind
from levada.core.job import Phase
from levada.core.plan import OpKind, Plan
from levada.core.types import Floats, Ints
from levada.engine import Engine, answer
from levada.errors import LevadaError
from levada.perf import Beliefs
from levada.policies.protocol import Needs
from levada.sim.arrivals import Arrivals
from levada.sim.counts import RoundCounts
from levada.sim.ended import Ended
from levada.sim.failures import Breakdowns
from levada.sim.metrics import Facts
from levada.sim.pace import Pace
from levada.sim.segments import Segment, Segments
from levada.sim.serving import ServingPods
from levada.sim.speeds import bind_truth, couples, is_packed, pair_rates, planned_rates, rates
from levada.sim.turns import as_line, turns_on
from levada.sim.use import Use

__all__ = ["Costs", "Segment", "Simulation"]

_START, _STOP = int(OpKind.START), int(OpKind.STOP)
#: The state is checked half as often with so many slots and devices, a third as often with twice as many, and so on.
_LARGE = 1024
#: Where so many moments pass in which no job makes progress and none comes or goes, none ever will.
_STUCK = 10_000
#: Or so many failures of nodes.
_FAILURES = 1000
#: Whoever only wants to know roughly how far jobs are is told so often.
_ROUGHLY_S = 3600.0


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that operations take; None: what the truth says of a job's restart."""

    start_s: float | None = 20.0
    resize_s: float | None = 5.0
    stop_s: float = 10.0


class Simulation:
    """Runs an engine against simulated jobs until nothing is left to happen."""

    def __init__(
        self,
        engine: Engine,
        truth: Beliefs,
        costs: Costs = Costs(),  # noqa: B008 frozen default
        after_each: Callable[[], None] | None = None,
        *,
        arrivals: Arrivals | None = None,
        breakdowns: Breakdowns | None = None,
        segments: bool = True,
        check_every: int = 1,
    ) -> None:
        """*after_each* is called whenever all that happened at one time has been dealt with.

        *segments*: keep the list of stretches that jobs ran. *check_every*: so many answers of the engine are taken
        between two checks of its whole state; more where that is large.
        """
        self.engine, self.truth, self.costs, self.after_each = engine, truth, costs, after_each
        engine.undo_faults = False  # a run with a fault has no result
        self.now = 0.0
        self.ended = Ended()
        self.decisions = self.preemptions = 0
        self.on_round: Callable[[bytes], None] | None = None
        self._rounds = RoundCounts()
        self._query = engine.query
        self.pace, self.use, self.pods = Pace(), Use(engine.query), ServingPods(engine.query)
        self.arrivals = arrivals if arrivals is not None else Arrivals(iter(()))
        self._record = Segments(engine.query) if segments else None
        self._breakdowns = breakdowns
        self._check_every = self._check_in = check_every
        self._wake = math.inf
        self._queue: list[tuple[float, int, ev.Event]] = []
        self._order = count()
        self._quiet = 0
        #: Failures since it was last looked how far jobs are, and how far they were.
        self._lost, self._far = 0, (-1, 0.0)
        self._packed = False
        #: Some job is restarted to be resized; and then guards ask how far jobs are.
        self._resizes_restart = self._restarts = False
        self._asked: Any = None
        #: How often it is told how far jobs are, and when it was.
        self._tell_s, self._told = math.inf, 0.0
        for event in breakdowns.first() if breakdowns is not None else ():
            self.add(event)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "after_each": None, "on_round": None}

    @property
    def rounds(self) -> int:
        """Rounds that have begun; with a policy without rounds, decisions."""
        return self._rounds.rounds

    @property
    def rejection(self) -> str | None:
        """Why the engine refused the last decision of the policy; None if it did not."""
        query = self.engine.query
        return query.last_rejection if query.rejections else None

    def facts(self) -> Facts:
        """What was counted up to now."""
        stats = self._query.round_stats()
        return Facts(
            end_s=self.now,
            used_gpu_s=self.use.by_name(),
            cost=self.use.cost,
            rounds=self._rounds.rounds,
            job_rounds=self._rounds.job_rounds,
            decisions=self.decisions,
            preemptions=self.preemptions,
            resizes=sum(self.ended.resizes),
            moves=sum(self.ended.moves),
            lease_extensions=0 if stats is None else stats.lease_extensions,
            lease_opportunities=0 if stats is None else stats.lease_opportunities,
        )

    @property
    def segments(self) -> list[Segment]:
        """The stretches that jobs ran and that are over."""
        return self._record.over if self._record is not None else []

    def add(self, event: ev.Event) -> None:
        """Lets *event* happen at its time."""
        heapq.heappush(self._queue, (event.at, next(self._order), event))

    def submit(self, jobs: JobBatch) -> None:
        """Lets each job arrive when it is submitted; `steps` is what it has to do."""
        times = jobs.columns["submitted"]
        for at in np.unique(times):
            rows = (times == at).nonzero()[0]
            self.add(ev.JobsSubmitted(at=float(at), jobs=jobs.rows(rows.tolist())))

    def serve(self, pod: Foreign, at: float, lasts_s: float) -> None:
        """Lets a serving pod want room from *at* on."""
        self.add(self.pods.arrival(pod, at, lasts_s))

    # --- time -----------------------------------------------------------------------------------------------------

    def run(self, until: float = math.inf, done: Callable[[], bool] = lambda: False) -> None:
        """Goes on until nothing happens any more, *until* then, or until *done* says so."""
        while not done() and (at := self._next()) <= until and at < math.inf:
            self.now = at
            self.use.advance(at)
            happened = self._happening()
            if happened:
                self._obey(self._face(happened))
                if self.pods.waiting:
                    self._start_pods(())
                self._give_up_if_stuck(happened)
                if self.decisions != self._rounds.decisions:
                    self._count_round()
                if self.after_each is not None:
                    self.after_each()
        self.check()

    def _next(self) -> float:
        queued = self._queue[0][0] if self._queue else math.inf
        return min(self._wake, queued, self.arrivals.next_at(), self.pace.next_end())

    def _happening(self) -> list[ev.Event]:
        """All that happens now: what was under way, jobs that finish, jobs that come, and time."""
        now = self.now
        happened: list[ev.Event] = []
        while self._queue and self._queue[0][0] == now:
            event = heapq.heappop(self._queue)[2]
            if self._breakdowns is not None and isinstance(event, ev.NodesLost | ev.NodesAdded):
                for later in self._breakdowns.after(event):
                    self.add(later)
            happened.append(event)
        if self.pace.next_end() <= now:
            happened.append(ev.JobsFinished(at=now, number=self.pace.ended(now)))
        if self.arrivals.next_at() <= now:
            happened += [ev.JobsSubmitted(at=now, jobs=batch) for batch in self.arrivals.until(now)]
        if self._wake <= now:
            self._wake = math.inf
            happened.append(ev.Tick(at=now))
        return happened

    def _count_round(self) -> None:
        """Counts a round where one has begun; a policy without rounds has one with each decision."""
        query, counts = self._query, self._rounds
        counts.decisions = self.decisions
        stats = query.round_stats()
        begun = self.decisions if stats is None or stats.next_round is None else stats.next_round
        if begun == counts.begun:
            return
        counts.begun = begun
        jobs = query.jobs
        if self.on_round is not None:
            self.on_round(
                as_line(counts.rounds, self.now, turns_on(query, query.target, jobs.count > 0), query.cluster)
            )
        round_s = math.inf if stats is None else stats.round_s
        # A policy that decides at every event has no rounds that jobs could be counted in.
        running = int(np.count_nonzero(jobs.count.take(jobs.order))) if round_s < math.inf else 0
        counts.add(self.now, running, round_s)

    def _give_up_if_stuck(self, happened: list[ev.Event]) -> None:
        """Raises where jobs wait and only the policy's own clock goes on."""
        # What is cheapest to ask comes first: nearly always somebody came, ended or reported.
        if type(happened[0]) is not ev.Tick or self._queue or self.pace.next_end() < math.inf or len(happened) > 1:
            self._quiet = 0
            return
        self._quiet += 1
        if self._quiet >= _STUCK and self.arrivals.next_at() == math.inf:
            raise LevadaError(f"at {self.now:.0f} s {len(self._query.jobs)} jobs wait and none will ever run")

    def _give_up_if_all_breaks(self, lost: int) -> None:
        """Raises where so many machines broke one after the other that no job got any further meanwhile."""
        self._lost += lost
        if self._lost < _FAILURES:
            return
        self._lost = 0
        far = len(self.ended.number), float(self._query.jobs.steps_done.sum())
        if far == self._far and len(self._query.jobs):
            raise LevadaError(
                f"at {self.now:.0f} s no job got any further over {_FAILURES} failures of nodes: "
                "let them fail less often, or repair them sooner"
            )
        self._far = far

    # --- the engine -----------------------------------------------------------------------------------------------

    def _face(self, happened: list[ev.Event]) -> list[Command]:
        """The engine's answer to what happened; jobs on machines that are lost stand still while it thinks."""
        progress = self._progress()
        lost: set[str] = set()
        for event in happened:
            if type(event) is ev.NodesLost:
                lost.update(event.names)
        if not lost:
            return self._handle(*progress, *happened)
        self._give_up_if_all_breaks(len(lost))
        hit = self._pause_on(lost)
        commands = self._handle(*progress, *happened)
        self._go_on(hit)
        return commands

    def _handle(self, *events: ev.Event) -> list[Command]:
        """The engine's answer; raises where a rule of its state is broken, for a simulation stands on them."""
        query = self._query
        first = query.next_number
        commands = self.engine.handle(*events)
        if query.next_number > first:
            self._enter(np.arange(first, query.next_number))
        self._check_in -= 1
        if self._check_in <= 0 or query.refused:
            self.check()
        return commands

    def check(self) -> None:
        """Raises where a rule of the engine's state is broken, conservation of jobs among them."""
        query = self._query
        # It takes as long as there are jobs and devices.
        self._check_in = self._check_every * (1 + query.size // _LARGE)
        broken = query.violations()
        if broken or query.refused:
            raise AssertionError(f"at {self.now}: {broken[:3] or query.last_rejection}")

    def _obey(self, commands: list[Command]) -> None:
        """Does what the engine asks. What takes no time is reported at once, and may be followed by more."""
        while commands:
            reports: list[ev.Event] = []
            for command in commands:
                # By type, the most frequent first: patterns would take twice as long.
                if type(command) is Wake:
                    self._wake = max(command.at, self.now)
                elif type(command) is Decide:
                    self.decisions += 1
                    reports.append(answer(command, self.now))
                elif type(command) is Apply:
                    reports += self._apply(command.plan)
                elif type(command) is JobsEnded:
                    self.ended.add(command)
                    self._end(command.number)
                elif type(command) is BindPods:
                    self._start_pods(command.binds)
                # Nothing strays here.
            commands = self._handle(*reports) if reports else []
        if self._packed:
            self._rate_couples()

    def _start_pods(self, binds: tuple[Bind, ...]) -> None:
        for event in self.pods.start(self.now, binds):
            self.add(event)

    def _progress(self) -> list[ev.Event]:
        """How far running jobs are, where somebody asks how much is left or learns from it."""
        policy = self._query.policy
        if policy is not self._asked:
            self._asked = policy
            always = Needs.REMAINING in policy.needs or self._query.learns
            self._tell_s = 0.0 if always else _ROUGHLY_S if Needs.PROGRESS in policy.needs else math.inf
        if self.now - self._told < self._tell_s and not (self._restarts and policy.guards.payback):
            return []
        self._told = self.now
        jobs = self._query.jobs
        order = jobs.order
        numbers = jobs.number.take(order[jobs.held.take(order) > 0])
        return [ev.Progress(at=self.now, number=numbers, steps=self.pace.steps(numbers, self.now))]

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _enter(self, numbers: Ints) -> None:
        jobs = self._query.jobs
        slots = jobs.find(numbers)
        self.pace.add(numbers, jobs.steps.take(slots))
        self._resizes_restart = self._restarts = self._restarts or 0 in jobs.resizes_in_place.take(slots).tolist()
        bind_truth(self.truth, self._query, numbers)

    def _end(self, numbers: Ints) -> None:
        self.pace.forget(numbers)
        if self._record is not None:
            self._record.close(numbers, self.now)

    def _stop(self, numbers: Ints) -> None:
        self.pace.pause(numbers, self.now)
        if self._record is not None:
            self._record.close(numbers, self.now)

    def _apply(self, plan: Plan) -> list[ev.Event]:
        """Begins the operations of a plan; jobs make no progress while theirs lasts. Reports those that are done."""
        number, kind, generation, gpu_type, count = plan.number, plan.kind, plan.generation, plan.type, plan.count
        done: list[ev.Event] = []
        if self._record is not None:
            self._record.close(number, self.now)
        if _STOP in kind.tolist():
            rows, others = (kind == _STOP).nonzero()[0], (kind != _STOP).nonzero()[0]
            self.preemptions += len(rows)
            self.pace.pause(number.take(rows), self.now)
            done += self._report(ev.Released, number.take(rows), generation.take(rows), self.costs.stop_s)
            if not len(others):
                return done
            number, kind, generation, gpu_type, count = (
                column.take(others) for column in (number, kind, generation, gpu_type, count)
            )
        query = self._query
        lasts = self._lasts(number, kind, count)
        begin = np.empty(len(number))
        begin[:] = self.now + lasts
        self.pace.go(number, self.now, planned_rates(self.truth, query, number, gpu_type, count), begin)
        if not self._packed and query.target.has_rows:
            self._packed = bool(is_packed(query, query.target)[query.jobs.find(number)].any())
        if self._record is not None:
            self._record.open(query.jobs.find(number), gpu_type, count, begin)
        return done + self._report(ev.Running, number, generation, lasts)

    def _lasts(self, number: Ints, kind: Ints, count: Ints) -> Floats | float:
        """Seconds that these starts and resizes take; one number where all take the same.

        A resize that is not in place is a stop and a start.
        """
        start = self.costs.start_s
        if self._resizes_restart and start is not None:
            jobs = self._query.jobs
            by_restart = (kind != _START) & (jobs.resizes_in_place.take(jobs.find(number)) == 0)
            if by_restart.any():
                told = self._lasts_in_place(number, kind, count)
                return np.where(by_restart, self.costs.stop_s + start, told)
        return self._lasts_in_place(number, kind, count)

    def _lasts_in_place(self, number: Ints, kind: Ints, count: Ints) -> Floats | float:
        start, resize = self.costs.start_s, self.costs.resize_s
        if start is not None and start == resize:
            return start
        told: Floats | float = 0.0
        if start is None or resize is None:
            told = self.truth.restart_costs_s(number, np.zeros(len(number), np.int64), count)
            if start is None and resize is None:
                return told if len(number) > 1 else told.item(0)
        return np.where(kind == _START, told if start is None else start, told if resize is None else resize)

    def _report(
        self, kind: type[ev.Released] | type[ev.Running], number: Ints, generation: Ints, lasts: Floats | float
    ) -> list[ev.Event]:
        """Reports of operations: those that take no time, and the others in the queue, equal times in one."""
        if isinstance(lasts, np.ndarray) and len(lasts) > 1 and lasts.min() < lasts.max():
            done: list[ev.Event] = []
            for seconds in np.unique(lasts).tolist():
                some = (lasts == seconds).nonzero()[0]
                done += self._report(kind, number.take(some), generation.take(some), seconds)
            return done
        seconds = float(lasts[0]) if isinstance(lasts, np.ndarray) else lasts
        event = kind(at=self.now + seconds, number=number, generation=generation)
        if seconds > 0:
            self.add(event)
            return []
        return [event]

    # --- jobs that share devices, and machines that break -----------------------------------------------------------

    def _rate_couples(self) -> None:
        """Packed jobs run at the speed that they have together while both run, and at their own otherwise."""
        query, jobs = self._query, self._query.jobs
        packed = is_packed(query, query.held)
        runs = packed & (jobs.phase == Phase.RUNNING) & (jobs.observed > 0)
        slots = runs.nonzero()[0]
        self._packed = bool(packed.any())
        want = rates(self.truth, query, query.held, slots, jobs.held_type[slots], jobs.held[slots])
        pairs = couples(query, runs)
        if pairs:
            a, b = np.array(pairs, np.int64).T
            together = pair_rates(self.truth, query, pairs)
            for side, member in enumerate((a, b)):
                want[np.searchsorted(slots, member)] = together[:, side]
            self.engine.observe_pairs(jobs.number[a], jobs.number[b], jobs.held_type[a], jobs.held[a], together)
        changed = want != self.pace.rates(jobs.number[slots])
        numbers = jobs.number[slots[changed]]
        self.pace.go(numbers, self.now, want[changed], np.full(len(numbers), self.now))

    def _pause_on(self, nodes: set[str]) -> Ints:
        """Jobs with something on these nodes, which are lost, stand still."""
        query, jobs = self._query, self._query.jobs
        gone = np.array([query.cluster.nodes.find(name) for name in nodes])
        slots = jobs.order[jobs.held[jobs.order] > 0]
        row, node = query.held.node_pairs(slots)
        numbers = jobs.number[slots[np.unique(row[np.isin(node, gone)])]]
        self._stop(numbers)
        return numbers

    def _go_on(self, numbers: Ints) -> None:
        """Those of them that go on with what they have left do so at the speed of that."""
        query, jobs = self._query, self._query.jobs
        slots = jobs.find(numbers)
        slots = slots[slots >= 0]
        slots = slots[(jobs.phase[slots] == Phase.RUNNING) & (jobs.op[slots] == OpKind.NONE)]
        if len(slots):
            found = rates(self.truth, query, query.held, slots, jobs.held_type[slots], jobs.held[slots])
            begin = np.full(len(slots), self.now)
            self.pace.go(jobs.number[slots], self.now, found, begin)
            if self._record is not None:
                self._record.open(slots, jobs.held_type[slots], jobs.held[slots], begin, held=True)
