"""The linear programs behind share policies, from job columns to the shares of all jobs.

Jobs are kept in classes from one solve to the next, and each solve starts where the one before ended. What is solved
is what the policy of that name solves with its own settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from levada.core.types import Floats, Ints
from levada.errors import LevadaError
from levada.policies.gavel.forms import REFERENCE_TYPE
from levada.policies.gavel.isolated import equal_shares
from levada.sim.solving.crowd import Crowd, Jobs
from levada.solve import packed
from levada.solve.classes import Classes
from levada.solve.finish_time import finish_time, makespan
from levada.solve.leximin import leximin
from levada.solve.problem import Problem, Solution, Warm
from levada.solve.total import total


class Program(NamedTuple):
    """What a policy solves."""

    solve: Callable[[Model, Problem], Solution]
    #: It knows how types differ; weights count; two jobs may share GPUs.
    aware: bool = True
    weighted: bool = True
    #: Where it does not know how types differ: all have the speed of the reference type, instead of 1.
    reference: bool = False


class Model:
    """The model of a crowd, kept while jobs come and go."""

    def __init__(self, program: Program, crowd: Crowd, jobs: Jobs, capacity: Floats) -> None:
        """From columns to the solver's model."""
        self.crowd, self.jobs, self.capacity = crowd, jobs, capacity
        self.warm: Warm | None = None
        self._program = program
        self._classes = Classes(len(capacity))
        self._of = self._classes.add(*self._keys(jobs))
        self._problem = self._classes.problem(self._of, capacity)

    @property
    def classes(self) -> int:
        """Classes with a job in them."""
        return int(np.count_nonzero(self._classes.count))

    def change(self, jobs: Jobs, rows: Ints, new: Jobs) -> None:
        """*jobs* are there now; those in *rows* are *new*."""
        self._classes.remove(self._of[rows])
        self._of[rows] = self._classes.add(*self._keys(new))
        self.jobs = jobs
        self._problem = self._classes.problem(self._of, self.capacity)

    def solve(self) -> float:
        """Shares of all jobs, and the objective that they reach; raises LevadaError where no solver found any."""
        solution = self._program.solve(self, self._problem)
        if solution.how == "equal":
            raise LevadaError(solution.alarm)
        self.warm = solution.warm
        return solution.level

    def _keys(self, jobs: Jobs) -> tuple[Floats, Floats, Floats, Ints]:
        """What makes two jobs the same, as `forms.problem_of` says it; the workload is in it for the sake of pairs."""
        believed = self._believed(jobs)
        fits = (jobs.rate > 0) & (jobs.scale[:, None] <= self.capacity)
        rate = np.where(fits, believed, 0.0)
        weight = np.ones(len(jobs))
        if self._program.weighted:
            whole, part = believed @ self.capacity, rate @ self.capacity
            weight = jobs.weight * np.divide(whole, part, out=np.ones(len(jobs)), where=part > 0)
        return rate, jobs.scale.astype(np.float64), weight, jobs.workload + 1

    def _believed(self, jobs: Jobs) -> Floats:
        if self._program.aware:
            return jobs.rate
        if not self._program.reference:
            return np.ones_like(jobs.rate)
        types = self.crowd.types
        column = types.index(REFERENCE_TYPE) if REFERENCE_TYPE in types else 0
        return np.repeat(jobs.rate[:, column : column + 1], len(types), axis=1)

    def pairs(self, problem: Problem) -> tuple[Ints, Floats]:
        """Classes that may share GPUs, and what both reach by type then."""
        workload = problem.entity - 1
        a, b = np.triu_indices(len(problem.rate))
        count = self._classes.count
        keep = (problem.scale[a] == problem.scale[b]) & (count[a] > 0) & (count[b] > 0) & ((a != b) | (count[a] > 1))
        a, b = a[keep], b[keep]
        together = self.crowd.model.pair_rates(
            workload[a][:, None],
            workload[b][:, None],
            np.arange(len(self.capacity))[None, :],
            problem.scale[a].astype(np.int64)[:, None],
        )
        runs = (problem.rate[a] > 0)[:, :, None] & (problem.rate[b] > 0)[:, :, None]
        return np.stack([a, b], axis=1), np.where(runs, together, 0.0)

    def ideal_s(self) -> Floats:
        """From coming to end with 1/n of the cluster, as if all so far had been spent so."""
        isolated = (self._believed(self.jobs) * equal_shares(self.capacity, self.jobs.scale.astype(np.float64))).sum(1)
        return self.jobs.elapsed_s + np.divide(
            self.jobs.steps_left, isolated, out=np.zeros(len(self.jobs)), where=isolated > 0
        )


def _levels(model: Model, problem: Problem) -> Solution:
    return leximin(problem, model.warm)


def _levels_packed(model: Model, problem: Problem) -> Solution:
    return packed.leximin_packed(problem, *model.pairs(problem))


def _finish(model: Model, problem: Problem) -> Solution:
    jobs = model.jobs
    return finish_time(problem, jobs.steps_left, jobs.elapsed_s, model.ideal_s(), model.warm)


def _makespan(model: Model, problem: Problem) -> Solution:
    return makespan(problem, model.jobs.steps_left, model.warm)


def _makespan_packed(model: Model, problem: Problem) -> Solution:
    return packed.makespan_packed(problem, *model.pairs(problem), model.jobs.steps_left)


def _sum(model: Model, problem: Problem, *, by_cost: bool) -> Solution:
    return total(problem, np.ones(len(model.capacity)) if by_cost else None)


PROGRAMS: Mapping[str, Program] = {
    "max_min_fairness": Program(_levels, aware=False),
    "max_min_fairness_perf": Program(_levels),
    "max_min_fairness_packed": Program(_levels_packed),
    "max_min_fairness_water_filling": Program(_levels, aware=False),
    "max_min_fairness_water_filling_perf": Program(_levels),
    "max_min_fairness_water_filling_packed": Program(_levels_packed),
    "finish_time_fairness": Program(_finish, aware=False, weighted=False, reference=True),
    "finish_time_fairness_perf": Program(_finish, weighted=False),
    "min_total_duration": Program(_makespan, aware=False, weighted=False, reference=True),
    "min_total_duration_perf": Program(_makespan, weighted=False),
    "min_total_duration_packed": Program(_makespan_packed, weighted=False),
    "max_sum_throughput_perf": Program(partial(_sum, by_cost=False), weighted=False),
    "max_sum_throughput_normalized_by_cost_perf": Program(partial(_sum, by_cost=True), weighted=False),
}
