"""One run: jobs arrive, the engine decides, operations take their time, jobs finish."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import count

import msgspec
import numpy as np

from levada.core.batch import JobBatch
from levada.core.cluster import Foreign
from levada.core.commands import Apply, BindPods, Command, Decide, JobsEnded, Wake
from levada.core.decision import Bind
from levada.core.events import Event, JobsFinished, JobsSubmitted, Progress, Released, Running, Tick
from levada.core.invariants import check_state
from levada.core.plan import OpKind
from levada.core.plane import NODE
from levada.core.types import WHOLE
from levada.engine import Engine, answer
from levada.perf import ThroughputModel
from levada.sim.serving import ServingPods


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that operations take."""

    start_s: float = 20.0
    resize_s: float = 5.0
    stop_s: float = 10.0


class Segment(msgspec.Struct, kw_only=True):
    """A stretch of time in which a job ran on one grant."""

    job: str
    begin: float
    end: float
    gpu_type: str
    workers: int
    nodes: tuple[str, ...]


class _Run(msgspec.Struct, kw_only=True):
    """What the simulated backend knows of a job."""

    total: float
    done: float = 0.0
    rate: float = 0.0
    #: From when on it makes progress at that rate.
    since: float = 0.0

    def steps(self, now: float) -> float:
        """How far it is."""
        return self.done + self.rate * max(now - self.since, 0.0)


class Simulation:
    """Runs an engine against simulated jobs until nothing is left to happen."""

    def __init__(
        self,
        engine: Engine,
        truth: ThroughputModel,
        costs: Costs = Costs(),  # noqa: B008 frozen default
        after_each: Callable[[], None] = lambda: None,
    ) -> None:
        self.engine, self.truth, self.costs = engine, truth, costs
        self.now = 0.0
        self.ended: list[JobsEnded] = []
        self.segments: list[Segment] = []
        self.decisions = 0
        self.pods = ServingPods(engine)
        #: Called whenever all that happened at one time has been dealt with.
        self._after_each = after_each
        self._wake = math.inf
        self._open: dict[int, Segment] = {}
        self._runs: dict[int, _Run] = {}
        self._queue: list[tuple[float, int, Event]] = []
        self._order = count()

    def add(self, event: Event) -> None:
        """Lets *event* happen at its time."""
        heapq.heappush(self._queue, (event.at, next(self._order), event))

    def submit(self, jobs: JobBatch) -> None:
        """Lets each job arrive when it is submitted; `steps` is what it has to do."""
        times = jobs.columns["submitted"]
        for at in np.unique(times):
            rows = (times == at).nonzero()[0]
            self.add(JobsSubmitted(at=float(at), jobs=jobs.rows(rows.tolist())))

    def serve(self, pod: Foreign, at: float, lasts_s: float) -> None:
        """Lets a serving pod want room from *at* on."""
        self.add(self.pods.arrival(pod, at, lasts_s))

    def run(self, until: float = math.inf) -> None:
        """Goes on until nothing happens any more, or *until*."""
        while (at := min(self._wake, self._queue[0][0] if self._queue else math.inf)) <= until and at < math.inf:
            self.now = at
            happened: list[Event] = []
            while self._queue and self._queue[0][0] == at:
                event = heapq.heappop(self._queue)[2]
                if self._still_true(event):
                    happened.append(event)
            if self._wake <= at:
                self._wake = math.inf
                happened.append(Tick(at=at))
            if happened:
                self._obey(self._handle(*self._progress(), *happened))
                self._start_pods(())
                self._after_each()

    def _progress(self) -> list[Event]:
        """How far running jobs are, so that the engine knows what is left."""
        if not self._runs:
            return []
        numbers = np.fromiter(self._runs, np.int64, len(self._runs))
        steps = np.array([run.steps(self.now) for run in self._runs.values()])
        return [Progress(at=self.now, number=numbers, steps=steps)]

    def _still_true(self, event: Event) -> bool:
        """A job finishes only if it kept the speed that it was foretold with."""
        if isinstance(event, JobsFinished):
            run = self._runs.get(int(event.number[0]))
            return run is not None and run.total - run.steps(self.now) <= 1e-6 * max(run.total, 1.0)
        return True

    def _handle(self, *events: Event) -> list[Command]:
        """The engine's answer; raises where a rule of its state is broken, for a simulation stands on them."""
        commands = self.engine.handle(*events)
        state = self.engine.state
        broken = check_state(state.world, submitted=state.submitted, ended=state.ended)
        if broken or state.refused:
            raise AssertionError(f"at {self.now}: {broken[:3] or state.last_rejection}")
        return commands

    def _obey(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Decide():
                    self.decisions += 1
                    self._obey(self._handle(answer(command, self.now)))
                case Apply():
                    self._apply(command)
                case JobsEnded():
                    self.ended.append(command)
                    for number in command.number:
                        self._runs.pop(int(number), None)
                        self._close(int(number))
                case BindPods():
                    self._start_pods(command.binds)
                case Wake():
                    self._wake = max(command.at, self.now)
                case _:
                    pass  # nothing strays here

    def _start_pods(self, binds: tuple[Bind, ...]) -> None:
        for event in self.pods.start(self.now, binds):
            self.add(event)

    def _apply(self, command: Apply) -> None:
        """Does every operation of a plan; each takes its time, and the job makes no progress meanwhile."""
        plan, world = command.plan, self.engine.state.world
        for row, slot in enumerate(world.table.find(plan.number)):
            number, kind = int(plan.number[row]), int(plan.kind[row])
            steps = float(world.table.steps[slot])
            run = self._runs.setdefault(number, _Run(total=math.inf if math.isnan(steps) else steps))
            run.done, run.rate = run.steps(self.now), 0.0
            self._close(number)
            names = {"number": plan.number[[row]], "generation": plan.generation[[row]]}
            if kind == OpKind.STOP:
                self.add(Released(at=self.now + self.costs.stop_s, **names))
                continue
            run.since = self.now + (self.costs.start_s if kind == OpKind.START else self.costs.resize_s)
            self.add(Running(at=run.since, **names))
            gpu_type, workers = int(plan.type[row]), int(plan.count[row])
            nodes = np.unique(world.places(world.target, int(slot))[NODE])
            # A worker without a GPU has its own speed, not none.
            milli = int(world.table.milli[slot]) or WHOLE
            run.rate = self.truth.rate(number, gpu_type, workers, len(nodes), milli)
            if run.rate > 0 and run.total < math.inf:
                self.add(JobsFinished(at=run.since + (run.total - run.done) / run.rate, number=names["number"]))
            self._open[number] = Segment(
                job=world.ids[number],
                begin=run.since,
                end=run.since,
                gpu_type=world.inventory.types[gpu_type],
                workers=workers,
                nodes=tuple(world.inventory.nodes[int(node)] for node in nodes),
            )

    def _close(self, number: int) -> None:
        segment = self._open.pop(number, None)
        if segment is not None and self.now > segment.begin:
            segment.end = self.now
            self.segments.append(segment)
