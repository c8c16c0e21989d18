"""Drive an engine with arriving and ending jobs and an instant backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench import load
from bench.timing import Stopwatch, engine_steps
from levada.core.batch import JobBatch
from levada.core.commands import Apply, Command, Decide
from levada.core.events import Event, JobsFinished, JobsSubmitted, Progress, Released, Restarted, Running, Tick
from levada.core.plan import OpKind
from levada.engine import Engine, Options, run_policy

#: Time between two decisions; long enough that all guards expire and the policy sees all jobs.
PACE_S = 120.0
#: Fraction of the jobs that ends between two decisions, and of new jobs that arrive.
CHURN = 0.015


class EngineDriver:
    """An engine, its jobs, and simulated time."""

    def __init__(self, policy: str, jobs: int, gpus: int, *, seed: int = 0, rate_limit_s: float = PACE_S - 20) -> None:
        # The live server enforces the time limit of decisions; here it would disturb.
        options = Options(rate_limit_s=rate_limit_s, decide_limit_s=float("inf"))
        self.engine = Engine(cluster=load.cluster(gpus), policy=policy, options=options, seed=seed)
        # Faults end the run; the live server would undo them.
        self.engine.undo_faults = False
        self.now = 0.0
        self.jobs = jobs
        self._rng = np.random.default_rng(seed)
        self._submitted = 0
        self._request: Decide | None = None

    # --- events -----------------------------------------------------------------------------------------------

    def new_jobs(self, count: int) -> JobBatch:
        """Return *count* jobs that arrive now."""
        batch = load.jobs(count, self._rng, at=self.now, first=self._submitted)
        self._submitted += count
        return batch

    def handle(self, *events: Event) -> list[Command]:
        """Pass events to the engine; store the request to the policy, if there is one."""
        commands = self.engine.handle(*events)
        for command in commands:
            if isinstance(command, Decide):
                self._request = command
        return commands

    def execute(self, commands: list[Command]) -> None:
        """Complete all operations at once, and those that become possible thereby."""
        while reports := [report for command in commands for report in self.reports(command)]:
            commands = self.handle(*reports)

    def reports(self, command: Command) -> list[Event]:
        """Return the reports of a backend that has completed *command*."""
        if not isinstance(command, Apply):
            return []
        plan = command.plan
        stops = plan.kind == OpKind.STOP
        events: list[Event] = []
        if stops.any():
            events.append(Released(at=self.now, number=plan.number[stops], generation=plan.generation[stops]))
        if not stops.all():
            events.append(Running(at=self.now, number=plan.number[~stops], generation=plan.generation[~stops]))
        return events

    def running(self) -> np.ndarray[Any, Any]:
        """Return the numbers of running jobs."""
        jobs = self.engine.query.jobs
        return jobs.number[jobs.order[jobs.observed[jobs.order] > 0]]

    def finish(self, count: int) -> JobsFinished:
        """Return an event that ends *count* running jobs."""
        running = self.running()
        chosen = self._rng.choice(running, min(count, len(running)), replace=False)
        return JobsFinished(at=self.now, number=np.sort(chosen))

    def progress(self, numbers: np.ndarray[Any, Any]) -> Progress:
        """Return the progress of these jobs, with slightly sublinear speed-up."""
        jobs = self.engine.query.jobs
        slots = jobs.find(numbers)
        speed = load.speeds(numbers, jobs.workload[slots]) * jobs.observed[slots] ** 0.9
        steps = jobs.steps_done[slots] + speed * (self.now - jobs.reported[slots])
        # Jobs do not reach their total before `finish` ends them.
        steps = np.fmin(steps, np.where(np.isnan(jobs.steps[slots]), np.inf, 0.99 * jobs.steps[slots]))
        return Progress(at=self.now, number=numbers, steps=steps)

    # --- decisions --------------------------------------------------------------------------------------------------

    def fill(self) -> dict[str, float]:
        """Submit all jobs at once and return the parts of the first decision in seconds."""
        self.handle(JobsSubmitted(at=self.now, jobs=self.new_jobs(self.jobs)))
        # Excludes the batch from the time of the decision: the request is dropped and repeated.
        self.handle(Restarted(at=self.now))
        return self.decide()

    def step(self) -> dict[str, float]:
        """End and submit some jobs, report progress, then decide; returns the parts in seconds."""
        count = max(1, round(CHURN * self.jobs))
        self.execute(
            self.handle(
                self.progress(self.running()),
                self.finish(count),
                JobsSubmitted(at=self.now, jobs=self.new_jobs(count)),
            )
        )
        return self.decide()

    def decide(self) -> dict[str, float]:
        """Take the next decision and execute it; returns its parts in seconds."""
        parts, commands = self.decision()
        self.execute(commands)
        return parts

    def decision(self) -> tuple[dict[str, float], list[Command]]:
        """Take the next decision; returns its parts in seconds, and the commands.

        `view` selects the visible jobs, `rest` is what the engine does around the other steps.
        """
        self.now += PACE_S
        watch = Stopwatch()
        watch.add("view", self.handle, Tick(at=self.now))
        request, self._request = self._request, None
        if request is None:
            raise RuntimeError("no decision was due")
        decided = watch.add("policy", run_policy, request, self.now)
        inner = Stopwatch()
        with engine_steps(inner):
            commands = watch.add("handle", self.handle, decided)
        if self.engine.query.last_rejection:
            raise RuntimeError(self.engine.query.last_rejection)
        parts = {"view": watch.seconds["view"], "policy": watch.seconds["policy"], "commit": 0.0, **inner.seconds}
        return {**parts, "rest": sum(watch.seconds.values()) - sum(parts.values())}, commands
