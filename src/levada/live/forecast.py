"""Forecast of job starts and ends: a fork of the engine runs in the simulator."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from levada.api.types import ForecastView
from levada.core import events as ev
from levada.core.batch import JobBatch
from levada.core.job import Job, Phase
from levada.core.plan import OpKind
from levada.core.types import Bools, Floats, Ints
from levada.engine import Engine
from levada.errors import LevadaError
from levada.live.views import moment
from levada.perf import Beliefs
from levada.sim.simulation import Costs, Simulation
from levada.sim.speeds import rates

#: Simulated time that a forecast covers at most.
_HORIZON_S = 90 * 86_400.0
#: CPU time of one forecast at most, checked every `_CHECK_TURNS` turns.
_MAX_CPU_S = 0.5
_CHECK_TURNS = 16
#: Assumed durations of operations.
_COSTS = Costs(start_s=5.0, resize_s=1.0, stop_s=2.0)


def forecast(
    twin: Engine, now: float, numbers: Sequence[int] | None, *, jobs: Sequence[Job] = (), policy: str | None = None
) -> dict[int, ForecastView]:
    """Forecast start and end by job number, with *jobs* added and under *policy*; *numbers*: None for all jobs.

    *twin* is a fork of the engine, which the forecast consumes. Learned speeds count as true, guessed ones do not: a
    job without declared total steps or without a measured speed has no end, and jobs that wait for it have no start.
    `None` means unknown, or beyond the horizon of 90 days.
    """
    twin.learn()  # include the latest measurements
    twin.assume(op_timeout_s=math.inf)
    world = _World(twin, now)
    if policy is not None:
        world.apply(ev.PolicyChanged(at=now, name=policy))
    if jobs:
        world.apply(ev.JobsSubmitted(at=now, jobs=JobBatch.of(jobs)))
    wanted = set(numbers) if numbers is not None else None
    world.simulate(wanted)
    return world.forecasts(wanted)


async def forecast_in_thread(
    engine: Engine, now: float, numbers: Sequence[int] | None, jobs: Sequence[Job] = (), policy: str | None = None
) -> dict[int, ForecastView]:
    """Run `forecast` on a fork of *engine* in a thread, so that the loop continues."""
    return await asyncio.to_thread(forecast, engine.fork(), now, numbers, jobs=jobs, policy=policy)


class _KnownSpeeds(Beliefs):
    """Measured speeds only: 0 for a job whose speed is guessed, so that no forecast is made of it."""

    def __init__(self, perf: Beliefs) -> None:
        self._perf = perf

    def rates(self, jobs: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        return np.where(self._perf.known(jobs), self._perf.rates(jobs, gpu_types, sizes), 0.0)

    def rate(self, job: int, gpu_type: int, workers: int, spread: int = 1, milli: int = 1000) -> float:
        known = bool(self._perf.known(np.array([job]))[0])
        return self._perf.rate(job, gpu_type, workers, spread, milli) if known else 0.0

    def pair_rates(self, a: Ints, b: Ints, gpu_types: Ints, sizes: Ints) -> Floats:
        return self._perf.pair_rates(a, b, gpu_types, sizes)

    def restart_costs_s(self, jobs: Ints, old: Ints, new: Ints) -> Floats:
        return self._perf.restart_costs_s(jobs, old, new)

    def known(self, jobs: Ints) -> Bools:
        return self._perf.known(jobs)


class _World(Simulation):
    """A simulation that starts from the state of a running engine."""

    def __init__(self, engine: Engine, now: float) -> None:
        super().__init__(engine, _KnownSpeeds(engine.query.beliefs()), _COSTS, segments=False, check_every=1 << 40)
        self.now = self._began = now
        self.utilization.advance(now)
        jobs = engine.query.jobs
        slots = jobs.order
        self._resizes_by_restart = 0 in jobs.resizes_in_place.take(slots).tolist()
        self.progress.add(jobs.number[slots], jobs.steps[slots] - jobs.steps_done[slots])
        runs = slots[(jobs.held[slots] > 0) & (jobs.issued[slots] == 0)]
        self._run(runs, now)
        for slot in slots[jobs.issued[slots] > 0].tolist():
            self._finish_operation(slot, now)
        # The policy run in progress does not answer to the fork.
        self.apply(ev.Restarted(at=now))

    def apply(self, event: ev.Event) -> None:
        """Apply an event now."""
        self._execute(self._handle(event))

    def _run(self, slots: Any, begin: float) -> None:
        if not len(slots):
            return
        query, jobs = self._query, self._query.jobs
        speeds = rates(self.truth, query, query.held, slots, jobs.held_type[slots], jobs.held[slots])
        self.progress.run(jobs.number[slots], self.now, speeds, np.full(len(slots), begin))

    def _finish_operation(self, slot: int, now: float) -> None:
        """Schedule the completion of an operation that was issued before the fork."""
        query, jobs = self._query, self._query.jobs
        numbers, generations = jobs.number[[slot]], jobs.generation[[slot]]
        if jobs.op[slot] == OpKind.STOP:
            self.add(ev.Released(at=now + self.costs.stop_s, number=numbers, generation=generations))
            return
        one = np.array([slot])
        done = now + float(np.max(self._op_durations(numbers, jobs.op[one], jobs.count[one])))
        self.add(ev.Running(at=done, number=numbers, generation=generations))
        if jobs.count[slot] > 0:
            speed = rates(self.truth, query, query.target, one, jobs.type[one], jobs.count[one])
            self.progress.run(numbers, now, speed, np.array([done]))

    def simulate(self, wanted: set[int] | None) -> None:
        """Run until all *wanted* jobs have ended, nothing happens any more, or a limit is reached."""
        began = time.thread_time()
        turns = 0

        def enough() -> bool:
            nonlocal turns
            turns += 1
            if turns % _CHECK_TURNS:
                return False
            late = time.thread_time() - began > _MAX_CPU_S
            return late or (wanted is not None and wanted <= set(self.ended.number))

        try:
            self.run(until=self._began + _HORIZON_S, done=enough)
        except (LevadaError, AssertionError):
            return  # forecast from the part that was simulated

    def forecasts(self, wanted: set[int] | None) -> dict[int, ForecastView]:
        """Return times by job number of the *wanted* jobs, or of all."""
        times: dict[int, ForecastView] = {}
        ended = self.ended
        for number, start, end, phase in zip(
            ended.number, ended.first_started, ended.finished, ended.phase, strict=True
        ):
            if phase == Phase.SUCCEEDED:
                times[number] = self._times(start, end)
        jobs = self._query.jobs
        for slot in jobs.order.tolist():
            times[int(jobs.number[slot])] = self._times(float(jobs.first_started[slot]), math.inf)
        return times if wanted is None else {number: times[number] for number in wanted if number in times}

    def _times(self, start: float, end: float) -> ForecastView:
        return {
            "starts": moment(start),
            "ends": moment(end),
            "starts_in_s": round(max(0.0, start - self._began), 1) if math.isfinite(start) else None,
            "ends_in_s": round(max(0.0, end - self._began), 1) if math.isfinite(end) else None,
        }
