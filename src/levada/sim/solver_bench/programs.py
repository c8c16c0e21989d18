"""The linear programs of share policies, from job columns to shares.

Jobs stay in classes between solves, and each solve starts from the previous solution. Each program is the one that the
policy of that name solves with its default settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np

from levada.core.types import Floats, Ints
from levada.errors import LevadaError
from levada.policies.gavel.isolated import equal_shares
from levada.policies.gavel.lp_common import REFERENCE_TYPE
from levada.sim.solver_bench.population import BenchJobs, Population
from levada.solve import packed
from levada.solve.classes import Classes
from levada.solve.finish_time import finish_time, makespan
from levada.solve.leximin import leximin
from levada.solve.max_throughput import total
from levada.solve.problem import ShareProblem, Solution, WarmStart


class BenchProgram(NamedTuple):
    """The linear program of a policy."""

    solve: Callable[[BenchModel, ShareProblem], Solution]
    #: Whether speeds of types differ, and whether weights count.
    aware: bool = True
    weighted: bool = True
    #: If not aware: all types have the speed of the reference type, instead of 1.
    reference: bool = False


class BenchModel:
    """Solver model of a population, updated when jobs are replaced."""

    def __init__(self, program: BenchProgram, population: Population, jobs: BenchJobs, capacity: Floats) -> None:
        """Build the solver's model from columns."""
        self.population, self.jobs, self.capacity = population, jobs, capacity
        self.warm: WarmStart | None = None
        self._program = program
        self._classes = Classes(len(capacity))
        self._of = self._classes.add(*self._keys(jobs))
        self._problem = self._classes.problem(self._of, capacity)

    @property
    def classes(self) -> int:
        """Number of classes with jobs."""
        return int(np.count_nonzero(self._classes.count))

    def change(self, jobs: BenchJobs, rows: Ints, new: BenchJobs) -> None:
        """Update the model to *jobs*, of which those in *rows* are *new*."""
        self._classes.remove(self._of[rows])
        self._of[rows] = self._classes.add(*self._keys(new))
        self.jobs = jobs
        self._problem = self._classes.problem(self._of, self.capacity)

    def solve(self) -> float:
        """Compute the shares of all jobs and return the objective; raises LevadaError if no solver succeeds."""
        solution = self._program.solve(self, self._problem)
        if solution.method == "equal":
            raise LevadaError(solution.alarm)
        self.warm = solution.warm
        return solution.level

    def _keys(self, jobs: BenchJobs) -> tuple[Floats, Floats, Floats, Ints]:
        """Return the columns that define a class, as in `lp_common.problem_of`, plus the workload for pairs."""
        believed = self._believed(jobs)
        fits = (jobs.rate > 0) & (jobs.scale[:, None] <= self.capacity)
        rate = np.where(fits, believed, 0.0)
        weight = np.ones(len(jobs))
        if self._program.weighted:
            whole, part = believed @ self.capacity, rate @ self.capacity
            weight = jobs.weight * np.divide(whole, part, out=np.ones(len(jobs)), where=part > 0)
        return rate, jobs.scale.astype(np.float64), weight, jobs.workload + 1

    def _believed(self, jobs: BenchJobs) -> Floats:
        if self._program.aware:
            return jobs.rate
        if not self._program.reference:
            return np.ones_like(jobs.rate)
        types = self.population.types
        column = types.index(REFERENCE_TYPE) if REFERENCE_TYPE in types else 0
        return np.repeat(jobs.rate[:, column : column + 1], len(types), axis=1)

    def pairs(self, problem: ShareProblem) -> tuple[Ints, Floats]:
        """Return pairs of classes that may share GPUs, and the rates of both by type."""
        workload = problem.entity - 1
        a, b = np.triu_indices(len(problem.rate))
        count = self._classes.count
        keep = (problem.scale[a] == problem.scale[b]) & (count[a] > 0) & (count[b] > 0) & ((a != b) | (count[a] > 1))
        a, b = a[keep], b[keep]
        together = self.population.model.pair_rates(
            workload[a][:, None],
            workload[b][:, None],
            np.arange(len(self.capacity))[None, :],
            problem.scale[a].astype(np.int64)[:, None],
        )
        runs = (problem.rate[a] > 0)[:, :, None] & (problem.rate[b] > 0)[:, :, None]
        return np.stack([a, b], axis=1), np.where(runs, together, 0.0)

    def ideal_s(self) -> Floats:
        """Return seconds from arrival to end with 1/n of the cluster, counting the elapsed time as spent so."""
        isolated = (self._believed(self.jobs) * equal_shares(self.capacity, self.jobs.scale.astype(np.float64))).sum(1)
        return self.jobs.elapsed_s + np.divide(
            self.jobs.steps_left, isolated, out=np.zeros(len(self.jobs)), where=isolated > 0
        )


def _levels(model: BenchModel, problem: ShareProblem) -> Solution:
    return leximin(problem, model.warm)


def _levels_packed(model: BenchModel, problem: ShareProblem) -> Solution:
    return packed.leximin_packed(problem, *model.pairs(problem))


def _finish(model: BenchModel, problem: ShareProblem) -> Solution:
    jobs = model.jobs
    return finish_time(problem, jobs.steps_left, jobs.elapsed_s, model.ideal_s(), model.warm)


def _makespan(model: BenchModel, problem: ShareProblem) -> Solution:
    return makespan(problem, model.jobs.steps_left, model.warm)


def _makespan_packed(model: BenchModel, problem: ShareProblem) -> Solution:
    return packed.makespan_packed(problem, *model.pairs(problem), model.jobs.steps_left)


def _sum(model: BenchModel, problem: ShareProblem, *, by_cost: bool) -> Solution:
    return total(problem, np.ones(len(model.capacity)) if by_cost else None)


PROGRAMS: Mapping[str, BenchProgram] = {
    "max_min_fairness": BenchProgram(_levels, aware=False),
    "max_min_fairness_perf": BenchProgram(_levels),
    "max_min_fairness_packed": BenchProgram(_levels_packed),
    "max_min_fairness_water_filling": BenchProgram(_levels, aware=False),
    "max_min_fairness_water_filling_perf": BenchProgram(_levels),
    "max_min_fairness_water_filling_packed": BenchProgram(_levels_packed),
    "finish_time_fairness": BenchProgram(_finish, aware=False, weighted=False, reference=True),
    "finish_time_fairness_perf": BenchProgram(_finish, weighted=False),
    "min_total_duration": BenchProgram(_makespan, aware=False, weighted=False, reference=True),
    "min_total_duration_perf": BenchProgram(_makespan, weighted=False),
    "min_total_duration_packed": BenchProgram(_makespan_packed, weighted=False),
    "max_sum_throughput_perf": BenchProgram(partial(_sum, by_cost=False), weighted=False),
    "max_sum_throughput_normalized_by_cost_perf": BenchProgram(partial(_sum, by_cost=True), weighted=False),
}
