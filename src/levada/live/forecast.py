"""What will become of jobs: the engine itself, copied, runs forward in a simulated world of what is believed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

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

#: A forecast looks so far ahead, and takes so long at most.
_HORIZON_S = 90 * 86_400.0
_MOST_CPU_S = 0.5
#: Looked at that often.
_LOOK_TURNS = 16
_COSTS = Costs(start_s=5.0, resize_s=1.0, stop_s=2.0)


def forecast(
    twin: Engine, now: float, numbers: Sequence[int] | None, *, jobs: Sequence[Job] = (), policy: str | None = None
) -> dict[int, dict[str, Any]]:
    """When these jobs (all, unless given) should start and end, by number, with *jobs* added and under *policy*.

    *twin* is a fork of the engine, and is used up.
    Beliefs stand for truth, guesses do not: a job whose total work is not declared, or of whose workload no speed is
    known, has no end, and those that wait for it have no start. `None` means unknown, or not within the horizon.
    """
    twin.learn()  # beliefs stand for truth here, so what was seen last counts, too
    twin.assume(op_timeout_s=math.inf)
    world = _World(twin, now)
    if policy is not None:
        world.obey(ev.PolicyChanged(at=now, name=policy))
    if jobs:
        world.obey(ev.JobsSubmitted(at=now, jobs=JobBatch.of(jobs)))
    wanted = set(numbers) if numbers is not None else None
    world.go(wanted)
    return world.told(wanted)


class _Known(Beliefs):
    """Speeds as far as they are known: 0 for a job whose speed a model only guesses, so that nothing is promised."""

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
    """A simulation that takes over in the middle."""

    def __init__(self, engine: Engine, now: float) -> None:
        super().__init__(engine, _Known(engine.query.beliefs()), _COSTS, segments=False, check_every=1 << 40)
        self.now = self._began = now
        self.use.advance(now)
        jobs = engine.query.jobs
        slots = jobs.order
        self._resizes_restart = 0 in jobs.resizes_in_place.take(slots).tolist()
        self.pace.add(jobs.number[slots], jobs.steps[slots] - jobs.steps_done[slots])
        runs = slots[(jobs.held[slots] > 0) & (jobs.issued[slots] == 0)]
        self._run(runs, now)
        for slot in slots[jobs.issued[slots] > 0].tolist():
            self._finish_operation(slot, now)
        # Whoever was deciding will not answer here.
        self.obey(ev.Restarted(at=now))

    def obey(self, event: ev.Event) -> None:
        """Lets something happen now."""
        self._obey(self._handle(event))

    def _run(self, slots: Any, begin: float) -> None:
        if not len(slots):
            return
        query, jobs = self._query, self._query.jobs
        found = rates(self.truth, query, query.held, slots, jobs.held_type[slots], jobs.held[slots])
        self.pace.go(jobs.number[slots], self.now, found, np.full(len(slots), begin))

    def _finish_operation(self, slot: int, now: float) -> None:
        """An operation that is out will be done as all others are."""
        query, jobs = self._query, self._query.jobs
        numbers, generations = jobs.number[[slot]], jobs.generation[[slot]]
        if jobs.op[slot] == OpKind.STOP:
            self.add(ev.Released(at=now + self.costs.stop_s, number=numbers, generation=generations))
            return
        one = np.array([slot])
        done = now + float(np.max(self._lasts(numbers, jobs.op[one], jobs.count[one])))
        self.add(ev.Running(at=done, number=numbers, generation=generations))
        if jobs.count[slot] > 0:
            speed = rates(self.truth, query, query.target, one, jobs.type[one], jobs.count[one])
            self.pace.go(numbers, now, speed, np.array([done]))

    def go(self, wanted: set[int] | None) -> None:
        """Until all that is wanted has ended, nothing happens any more, or enough was looked at."""
        began = time.thread_time()
        turns = 0

        def enough() -> bool:
            nonlocal turns
            turns += 1
            if turns % _LOOK_TURNS:
                return False
            late = time.thread_time() - began > _MOST_CPU_S
            return late or (wanted is not None and wanted <= set(self.ended.number))

        try:
            self.run(until=self._began + _HORIZON_S, done=enough)
        except (LevadaError, AssertionError):
            return  # as far as it came is what can be told

    def told(self, wanted: set[int] | None) -> dict[int, dict[str, Any]]:
        """What was found out."""
        found: dict[int, dict[str, Any]] = {}
        ended = self.ended
        for number, start, end, phase in zip(
            ended.number, ended.first_started, ended.finished, ended.phase, strict=True
        ):
            if phase == Phase.SUCCEEDED:
                found[number] = self._times(start, end)
        jobs = self._query.jobs
        for slot in jobs.order.tolist():
            found[int(jobs.number[slot])] = self._times(float(jobs.first_started[slot]), math.inf)
        return found if wanted is None else {number: found[number] for number in wanted if number in found}

    def _times(self, start: float, end: float) -> dict[str, Any]:
        return {
            "starts": moment(start),
            "ends": moment(end),
            "starts_in_s": round(max(0.0, start - self._began), 1) if math.isfinite(start) else None,
            "ends_in_s": round(max(0.0, end - self._began), 1) if math.isfinite(end) else None,
        }
