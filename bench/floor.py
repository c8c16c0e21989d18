"""An engine at work: jobs come and go, and a backend that does at once what it is told."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench import load
from bench.timing import Stopwatch, inside_the_engine
from levada.core.batch import JobBatch
from levada.core.commands import Apply, Command, Decide
from levada.core.events import Event, JobsFinished, JobsSubmitted, Progress, Released, Restarted, Running, Tick
from levada.core.plan import OpKind
from levada.engine import Engine, Options, answer

#: Before each decision nothing happens for long enough that every guard falls, so that the policy sees all jobs.
PACE_S = 120.0
#: The share of the jobs that ends between two decisions, and of new ones that come.
CHURN = 0.015


class Floor:
    """An engine, its jobs, and the time on the wall."""

    def __init__(self, policy: str, jobs: int, gpus: int, *, seed: int = 0, rate_limit_s: float = PACE_S - 20) -> None:
        # The limit on a decision's own time is the shell's affair; here it only gets in the way.
        options = Options(rate_limit_s=rate_limit_s, decide_limit_s=float("inf"))
        self.engine = Engine(cluster=load.cluster(gpus), policy=policy, options=options, seed=seed)
        # The shell decides whether faults are undone; here they end the run.
        self.engine.undo_faults = False
        self.now = 0.0
        self.jobs = jobs
        self._rng = np.random.default_rng(seed)
        self._come = 0
        self._question: Decide | None = None

    # --- what happens -----------------------------------------------------------------------------------------------

    def new_jobs(self, count: int) -> JobBatch:
        """So many jobs that arrive now."""
        made = load.jobs(count, self._rng, at=self.now, first=self._come)
        self._come += count
        return made

    def happen(self, *events: Event) -> list[Command]:
        """Lets these events happen and keeps the question to the policy, if one comes of it."""
        commands = self.engine.handle(*events)
        for command in commands:
            if isinstance(command, Decide):
                self._question = command
        return commands

    def obey(self, commands: list[Command]) -> None:
        """Does all operations at once, and those that become possible by it."""
        while reports := [report for command in commands for report in self.reports(command)]:
            commands = self.happen(*reports)

    def reports(self, command: Command) -> list[Event]:
        """What a backend says after it has done what *command* asks."""
        if not isinstance(command, Apply):
            return []
        plan = command.plan
        stops = plan.kind == OpKind.STOP
        told: list[Event] = []
        if stops.any():
            told.append(Released(at=self.now, number=plan.number[stops], generation=plan.generation[stops]))
        if not stops.all():
            told.append(Running(at=self.now, number=plan.number[~stops], generation=plan.generation[~stops]))
        return told

    def running(self) -> np.ndarray[Any, Any]:
        """Numbers of the jobs that run."""
        jobs = self.engine.query.jobs
        return jobs.number[jobs.order[jobs.observed[jobs.order] > 0]]

    def finish(self, count: int) -> JobsFinished:
        """So many of the running jobs are done."""
        runs = self.running()
        chosen = self._rng.choice(runs, min(count, len(runs)), replace=False)
        return JobsFinished(at=self.now, number=np.sort(chosen))

    def progress(self, numbers: np.ndarray[Any, Any]) -> Progress:
        """How far these jobs are, at a speed a little less than linear."""
        jobs = self.engine.query.jobs
        slots = jobs.find(numbers)
        speed = load.speeds(numbers, jobs.workload[slots]) * jobs.observed[slots] ** 0.9
        steps = jobs.steps_done[slots] + speed * (self.now - jobs.reported[slots])
        # No job is done before it is said to be.
        steps = np.fmin(steps, np.where(np.isnan(jobs.steps[slots]), np.inf, 0.99 * jobs.steps[slots]))
        return Progress(at=self.now, number=numbers, steps=steps)

    # --- decisions --------------------------------------------------------------------------------------------------

    def fill(self) -> dict[str, float]:
        """All jobs arrive at once: the first decision, cold; its parts in seconds."""
        self.happen(JobsSubmitted(at=self.now, jobs=self.new_jobs(self.jobs)))
        # The batch itself must not be part of the decision's time: its question is dropped and asked again.
        self.happen(Restarted(at=self.now))
        return self.decide()

    def step(self) -> dict[str, float]:
        """Some jobs end, some come, all report; then a decision. Its parts in seconds."""
        count = max(1, round(CHURN * self.jobs))
        self.obey(
            self.happen(
                self.progress(self.running()),
                self.finish(count),
                JobsSubmitted(at=self.now, jobs=self.new_jobs(count)),
            )
        )
        return self.decide()

    def decide(self) -> dict[str, float]:
        """The next decision and all that follows from it; its parts in seconds."""
        parts, commands = self.decision()
        self.obey(commands)
        return parts

    def decision(self) -> tuple[dict[str, float], list[Command]]:
        """The next decision, from the question to the operations that go out: its parts in seconds, and commands.

        `view` is the choice of who may be seen, `rest` what the engine does around its other steps.
        """
        self.now += PACE_S
        watch = Stopwatch()
        watch.add("view", self.happen, Tick(at=self.now))
        question, self._question = self._question, None
        if question is None:
            raise RuntimeError("no decision was due")
        decided = watch.add("policy", answer, question, self.now)
        inner = Stopwatch()
        with inside_the_engine(inner):
            commands = watch.add("handle", self.happen, decided)
        if self.engine.query.last_rejection:
            raise RuntimeError(self.engine.query.last_rejection)
        parts = {"view": watch.seconds["view"], "policy": watch.seconds["policy"], "commit": 0.0, **inner.seconds}
        return {**parts, "rest": sum(watch.seconds.values()) - sum(parts.values())}, commands
