"""Discrete-event simulation of jobs, the engine and its operations.

Jobs arrive, the engine decides, operations take time, and jobs finish. The clock jumps to the next event. The
simulation owns the truth (real speed of each placement, duration of operations, node failures); policies see only what
the engine believes.
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
from levada.engine import Engine, run_policy
from levada.errors import LevadaError
from levada.perf import Beliefs
from levada.policies.protocol import Needs
from levada.sim.arrivals import Arrivals
from levada.sim.completed import CompletedJobs
from levada.sim.failures import NodeFailures
from levada.sim.metrics import Facts
from levada.sim.progress import JobProgress
from levada.sim.round_log import RoundCounts, as_line, turns_on
from levada.sim.serving import ServingPods
from levada.sim.speeds import bind_truth, is_packed, packed_pairs, pair_rates, planned_rates, rates
from levada.sim.timeline import Segment, SegmentLog
from levada.sim.utilization import Utilization

__all__ = ["Costs", "Segment", "Simulation"]

_START, _STOP = int(OpKind.START), int(OpKind.STOP)
#: The check interval grows by `check_every` for every 1024 slots and devices.
_LARGE = 1024
#: The run is stuck after this many ticks without progress, arrivals or ends.
_STUCK = 10_000
#: The run is also stuck after this many node failures without progress.
_FAILURES = 1000
#: Interval of progress reports to policies that need only a rough value.
_ROUGH_PROGRESS_S = 3600.0


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that operations take; None: the restart cost of the job in the throughput table."""

    start_s: float | None = 20.0
    resize_s: float | None = 5.0
    stop_s: float = 10.0


class Simulation:
    """Runs an engine against simulated jobs until no events are left."""

    def __init__(
        self,
        engine: Engine,
        truth: Beliefs,
        costs: Costs = Costs(),  # noqa: B008 frozen default
        after_each: Callable[[], None] | None = None,
        *,
        arrivals: Arrivals | None = None,
        node_failures: NodeFailures | None = None,
        segments: bool = True,
        check_every: int = 1,
    ) -> None:
        """*after_each* is called after all events of one time are handled.

        *segments*: record the intervals in which jobs ran. *check_every*: calls of the engine between two checks of its
        whole state; more if the state is large.
        """
        self.engine, self.truth, self.costs, self.after_each = engine, truth, costs, after_each
        engine.undo_faults = False  # a run with a fault has no result
        self.now = 0.0
        self.ended = CompletedJobs()
        self.decisions = self.preemptions = 0
        self.on_round: Callable[[bytes], None] | None = None
        self._rounds = RoundCounts()
        self._query = engine.query
        self.progress, self.utilization = JobProgress(), Utilization(engine.query)
        self.pods = ServingPods(engine.query)
        self.arrivals = arrivals if arrivals is not None else Arrivals(iter(()))
        self._segments = SegmentLog(engine.query) if segments else None
        self._node_failures = node_failures
        self._check_every = self._check_in = check_every
        self._wake = math.inf
        self._queue: list[tuple[float, int, ev.Event]] = []
        self._order = count()
        self._idle_ticks = 0
        #: Node failures since the last progress check, and ended jobs and total steps at that check.
        self._lost, self._last_progress = 0, (-1, 0.0)
        self._packed = False
        #: Whether some job resizes by restart; and whether the payback guard therefore needs progress reports.
        self._resizes_by_restart = self._payback_needs_progress = False
        self._policy: Any = None
        #: Interval of progress reports, and the time of the last one.
        self._report_s, self._reported = math.inf, 0.0
        for event in node_failures.first() if node_failures is not None else ():
            self.add(event)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "after_each": None, "on_round": None}

    @property
    def rounds(self) -> int:
        """Rounds that have begun; decisions if the policy has no rounds."""
        return self._rounds.rounds

    @property
    def rejection(self) -> str | None:
        """Why the engine rejected the last decision of the policy; None if it did not."""
        query = self.engine.query
        return query.last_rejection if query.rejections else None

    def facts(self) -> Facts:
        """Return the counters so far."""
        stats = self._query.round_stats()
        return Facts(
            end_s=self.now,
            used_gpu_s=self.utilization.by_name(),
            cost=self.utilization.cost,
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
        """Closed intervals in which jobs ran."""
        return self._segments.closed if self._segments is not None else []

    def add(self, event: ev.Event) -> None:
        """Schedule *event* at its time."""
        heapq.heappush(self._queue, (event.at, next(self._order), event))

    def submit(self, jobs: JobBatch) -> None:
        """Schedule the arrival of each job at its submission time; `steps` is its total work."""
        times = jobs.columns["submitted"]
        for at in np.unique(times):
            rows = (times == at).nonzero()[0]
            self.add(ev.JobsSubmitted(at=float(at), jobs=jobs.rows(rows.tolist())))

    def serve(self, pod: Foreign, at: float, lasts_s: float) -> None:
        """Schedule a serving pod that requests capacity from *at* and runs for *lasts_s*."""
        self.add(self.pods.arrival(pod, at, lasts_s))

    # --- time -----------------------------------------------------------------------------------------------------

    def run(self, until: float = math.inf, done: Callable[[], bool] = lambda: False) -> None:
        """Simulate until no events are left, until time *until*, or until *done* returns True."""
        while not done() and (at := self._next()) <= until and at < math.inf:
            self.now = at
            self.utilization.advance(at)
            events = self._due_events()
            if events:
                self._execute(self._handle_events(events))
                if self.pods.waiting:
                    self._start_pods(())
                self._raise_if_stuck(events)
                if self.decisions != self._rounds.decisions:
                    self._count_round()
                if self.after_each is not None:
                    self.after_each()
        self.check()

    def _next(self) -> float:
        queued = self._queue[0][0] if self._queue else math.inf
        return min(self._wake, queued, self.arrivals.next_at(), self.progress.next_end())

    def _due_events(self) -> list[ev.Event]:
        """Pop all events of the current time: queued ones, ends, arrivals, and the wake-up."""
        now = self.now
        events: list[ev.Event] = []
        while self._queue and self._queue[0][0] == now:
            event = heapq.heappop(self._queue)[2]
            if self._node_failures is not None and isinstance(event, ev.NodesLost | ev.NodesAdded):
                for later in self._node_failures.after(event):
                    self.add(later)
            events.append(event)
        if self.progress.next_end() <= now:
            events.append(ev.JobsFinished(at=now, number=self.progress.ended(now)))
        if self.arrivals.next_at() <= now:
            events += [ev.JobsSubmitted(at=now, jobs=batch) for batch in self.arrivals.until(now)]
        if self._wake <= now:
            self._wake = math.inf
            events.append(ev.Tick(at=now))
        return events

    def _count_round(self) -> None:
        """Count a round if one has begun; without rounds every decision counts as one."""
        query, counts = self._query, self._rounds
        counts.decisions = self.decisions
        stats = query.round_stats()
        begun = self.decisions if stats is None or stats.next_round is None else stats.next_round
        if begun == counts.begun:
            return
        counts.begun = begun
        if self.on_round is not None:
            granted = query.jobs.count > 0
            self.on_round(as_line(counts.rounds, self.now, turns_on(query, query.target, granted), query.cluster))
        round_s = math.inf if stats is None else stats.round_s
        # A policy that decides at every event has no rounds, hence no jobs per round.
        counts.add(self.now, query.count_granted() if round_s < math.inf else 0, round_s)

    def _raise_if_stuck(self, events: list[ev.Event]) -> None:
        """Raise LevadaError if jobs wait and only the policy's wake-ups are left."""
        # The cheapest test is first; it is nearly always true.
        if type(events[0]) is not ev.Tick or self._queue or self.progress.next_end() < math.inf or len(events) > 1:
            self._idle_ticks = 0
            return
        self._idle_ticks += 1
        if self._idle_ticks >= _STUCK and self.arrivals.next_at() == math.inf:
            raise LevadaError(f"simulation is stuck at {self.now:.0f} s: {len(self._query.jobs)} jobs can never start")

    def _raise_if_failures_block(self, lost: int) -> None:
        """Raise LevadaError if no job made progress over the last 1000 node failures."""
        self._lost += lost
        if self._lost < _FAILURES:
            return
        self._lost = 0
        progress = len(self.ended.number), float(self._query.jobs.steps_done.sum())
        if progress == self._last_progress and len(self._query.jobs):
            raise LevadaError(
                f"simulation is stuck at {self.now:.0f} s: no job made progress over {_FAILURES} node failures; "
                "raise --failures or lower --repair"
            )
        self._last_progress = progress

    # --- the engine -----------------------------------------------------------------------------------------------

    def _handle_events(self, events: list[ev.Event]) -> list[Command]:
        """Pass events to the engine; jobs on lost nodes pause meanwhile."""
        reports = self._progress_reports()
        lost: set[str] = set()
        for event in events:
            if type(event) is ev.NodesLost:
                lost.update(event.names)
        if not lost:
            return self._handle(*reports, *events)
        self._raise_if_failures_block(len(lost))
        paused = self._pause_on(lost)
        commands = self._handle(*reports, *events)
        self._continue_with_rest(paused)
        return commands

    def _handle(self, *events: ev.Event) -> list[Command]:
        """Return the engine's commands; raises AssertionError if an invariant is violated."""
        query = self._query
        first = query.next_number
        commands = self.engine.handle(*events)
        if query.next_number > first:
            self._add_jobs(np.arange(first, query.next_number))
        self._check_in -= 1
        if self._check_in <= 0 or query.refused:
            self.check()
        return commands

    def check(self) -> None:
        """Raise AssertionError if the engine's state violates an invariant."""
        query = self._query
        # The cost is proportional to jobs and devices.
        self._check_in = self._check_every * (1 + query.size // _LARGE)
        broken = query.violations()
        if broken or query.refused:
            raise AssertionError(f"at {self.now}: {broken[:3] or query.last_rejection}")

    def _execute(self, commands: list[Command]) -> None:
        """Execute commands. Operations that take no time are acknowledged at once, which may cause more commands."""
        while commands:
            reports: list[ev.Event] = []
            for command in commands:
                # Most frequent type first; a match statement would take twice as long.
                if type(command) is Wake:
                    self._wake = max(command.at, self.now)
                elif type(command) is Decide:
                    self.decisions += 1
                    reports.append(run_policy(command, self.now))
                elif type(command) is Apply:
                    reports += self._apply(command.plan)
                elif type(command) is JobsEnded:
                    self.ended.add(command)
                    self._remove_jobs(command.number)
                elif type(command) is BindPods:
                    self._start_pods(command.binds)
            commands = self._handle(*reports) if reports else []
        if self._packed:
            self._update_pair_rates()

    def _start_pods(self, binds: tuple[Bind, ...]) -> None:
        for event in self.pods.start(self.now, binds):
            self.add(event)

    def _progress_reports(self) -> list[ev.Event]:
        """Progress of running jobs, if the policy, a guard or the estimator needs it now."""
        policy = self._query.policy
        if policy is not self._policy:
            self._policy = policy
            always = Needs.REMAINING in policy.needs or self._query.learns
            self._report_s = 0.0 if always else _ROUGH_PROGRESS_S if Needs.PROGRESS in policy.needs else math.inf
        is_due = self.now - self._reported >= self._report_s
        if not is_due and not (self._payback_needs_progress and policy.guards.payback):
            return []
        self._reported = self.now
        jobs = self._query.jobs
        order = jobs.order
        numbers = jobs.number.take(order[jobs.held.take(order) > 0])
        return [ev.Progress(at=self.now, number=numbers, steps=self.progress.steps(numbers, self.now))]

    # --- jobs -----------------------------------------------------------------------------------------------------

    def _add_jobs(self, numbers: Ints) -> None:
        jobs = self._query.jobs
        slots = jobs.find(numbers)
        self.progress.add(numbers, jobs.steps.take(slots))
        restarts = self._payback_needs_progress or 0 in jobs.resizes_in_place.take(slots).tolist()
        self._resizes_by_restart = self._payback_needs_progress = restarts
        bind_truth(self.truth, self._query, numbers)

    def _remove_jobs(self, numbers: Ints) -> None:
        self.progress.remove(numbers)
        if self._segments is not None:
            self._segments.close(numbers, self.now)

    def _pause(self, numbers: Ints) -> None:
        self.progress.pause(numbers, self.now)
        if self._segments is not None:
            self._segments.close(numbers, self.now)

    def _apply(self, plan: Plan) -> list[ev.Event]:
        """Begin the operations of a plan, which pause their jobs; returns acks of those that take no time."""
        number, kind, generation, gpu_type, count = plan.number, plan.kind, plan.generation, plan.type, plan.count
        done: list[ev.Event] = []
        if self._segments is not None:
            self._segments.close(number, self.now)
        if _STOP in kind.tolist():
            rows, others = (kind == _STOP).nonzero()[0], (kind != _STOP).nonzero()[0]
            self.preemptions += len(rows)
            self.progress.pause(number.take(rows), self.now)
            done += self._acknowledge(ev.Released, number.take(rows), generation.take(rows), self.costs.stop_s)
            if not len(others):
                return done
            number, kind, generation, gpu_type, count = (
                column.take(others) for column in (number, kind, generation, gpu_type, count)
            )
        query = self._query
        op_s = self._op_durations(number, kind, count)
        begin = np.empty(len(number))
        begin[:] = self.now + op_s
        self.progress.run(number, self.now, planned_rates(self.truth, query, number, gpu_type, count), begin)
        if not self._packed and query.target.has_rows:
            self._packed = bool(is_packed(query, query.target)[query.jobs.find(number)].any())
        if self._segments is not None:
            self._segments.open(query.jobs.find(number), gpu_type, count, begin)
        return done + self._acknowledge(ev.Running, number, generation, op_s)

    def _op_durations(self, number: Ints, kind: Ints, count: Ints) -> Floats | float:
        """Seconds that these starts and resizes take; one number if all take the same.

        A resize that is not in place is a stop and a start.
        """
        start = self.costs.start_s
        if self._resizes_by_restart and start is not None:
            jobs = self._query.jobs
            by_restart = (kind != _START) & (jobs.resizes_in_place.take(jobs.find(number)) == 0)
            if by_restart.any():
                in_place_s = self._op_durations_in_place(number, kind, count)
                return np.where(by_restart, self.costs.stop_s + start, in_place_s)
        return self._op_durations_in_place(number, kind, count)

    def _op_durations_in_place(self, number: Ints, kind: Ints, count: Ints) -> Floats | float:
        start, resize = self.costs.start_s, self.costs.resize_s
        if start is not None and start == resize:
            return start
        restart: Floats | float = 0.0
        if start is None or resize is None:
            restart = self.truth.restart_costs_s(number, np.zeros(len(number), np.int64), count)
            if start is None and resize is None:
                return restart if len(number) > 1 else restart.item(0)
        return np.where(kind == _START, restart if start is None else start, restart if resize is None else resize)

    def _acknowledge(
        self, kind: type[ev.Released] | type[ev.Running], number: Ints, generation: Ints, op_s: Floats | float
    ) -> list[ev.Event]:
        """Return acks of operations that take no time; queue the others, one event per time."""
        times: list[float] = sorted(set(op_s.tolist())) if isinstance(op_s, np.ndarray) else [op_s]
        if len(times) > 1:
            done: list[ev.Event] = []
            for seconds in times:
                rows = np.equal(op_s, seconds).nonzero()[0]
                done += self._acknowledge(kind, number.take(rows), generation.take(rows), seconds)
            return done
        event = kind(at=self.now + times[0], number=number, generation=generation)
        if times[0] > 0:
            self.add(event)
            return []
        return [event]

    # --- shared devices and node failures ---------------------------------------------------------------------------

    def _update_pair_rates(self) -> None:
        """Set packed jobs to their pair rate while both run, and to their own rate otherwise."""
        query, jobs = self._query, self._query.jobs
        packed = is_packed(query, query.held)
        running = packed & (jobs.phase == Phase.RUNNING) & (jobs.observed > 0)
        slots = running.nonzero()[0]
        self._packed = bool(packed.any())
        new_rates = rates(self.truth, query, query.held, slots, jobs.held_type[slots], jobs.held[slots])
        pairs = packed_pairs(query, running)
        if pairs:
            a, b = np.array(pairs, np.int64).T
            together = pair_rates(self.truth, query, pairs)
            for side, member in enumerate((a, b)):
                new_rates[np.searchsorted(slots, member)] = together[:, side]
            self.engine.observe_pairs(jobs.number[a], jobs.number[b], jobs.held_type[a], jobs.held[a], together)
        changed = new_rates != self.progress.rates(jobs.number[slots])
        numbers = jobs.number[slots[changed]]
        self.progress.run(numbers, self.now, new_rates[changed], np.full(len(numbers), self.now))

    def _pause_on(self, nodes: set[str]) -> Ints:
        """Pause the jobs that hold something on these lost nodes; returns their numbers."""
        query, jobs = self._query, self._query.jobs
        lost = np.array([query.cluster.nodes.find(name) for name in nodes])
        slots = jobs.order[jobs.held[jobs.order] > 0]
        row, node = query.held.node_pairs(slots)
        numbers = jobs.number[slots[np.unique(row[np.isin(node, lost)])]]
        self._pause(numbers)
        return numbers

    def _continue_with_rest(self, numbers: Ints) -> None:
        """Continue those jobs that the engine lets run on their remaining workers."""
        query, jobs = self._query, self._query.jobs
        slots = jobs.find(numbers)
        slots = slots[slots >= 0]
        slots = slots[(jobs.phase[slots] == Phase.RUNNING) & (jobs.op[slots] == OpKind.NONE)]
        if len(slots):
            new_rates = rates(self.truth, query, query.held, slots, jobs.held_type[slots], jobs.held[slots])
            begin = np.full(len(slots), self.now)
            self.progress.run(jobs.number[slots], self.now, new_rates, begin)
            if self._segments is not None:
                self._segments.open(slots, jobs.held_type[slots], jobs.held[slots], begin, held=True)
