"""Golden allocations of Gavel's policies, as share problems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from levada.core.types import Floats, Ints
from levada.solve.fallback import find_violation
from levada.solve.problem import ShareProblem, Solution, problem
from tests.peer_data import gavel_table

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "gavel_allocations.json").read_text())


class GoldenCase(NamedTuple):
    """One instance: the input of the policies."""

    name: str
    rate: Floats
    agnostic: Floats  #: the rates of the fastest type everywhere
    scale: Floats
    weight: Floats
    capacity: Floats
    cost: Floats
    steps: Floats
    elapsed: Floats
    need: Floats  #: steps per second to meet the deadline, 0 = none
    types: tuple[str, ...]
    kinds: tuple[str, ...]  #: the names of the jobs' models

    def problem(self, rate: Floats | None = None) -> ShareProblem:
        """The problem with these rates (default: `self.rate`)."""
        rate = self.rate if rate is None else rate
        return problem(rate, self.capacity, scale=self.scale, weight=self.weight)

    def ideal(self, rate: Floats, so_far: Any = 0.0) -> Floats:
        """Completion time on an equal part of the cluster, *so_far* of which has passed."""
        share = self.capacity / (len(rate) * self.scale[:, None])
        share /= np.maximum(share.sum(axis=1), 1.0)[:, None]
        return np.asarray(so_far) + self.steps / (rate * share).sum(axis=1)


def build_case(data: dict[str, Any]) -> GoldenCase:
    types, jobs = data["worker_types"], data["jobs"]
    rate = np.array(data["throughputs"], float)
    deadlines = [job["SLO_seconds_remaining"] for job in jobs]
    steps = np.array([job["num_steps_remaining"] for job in jobs], float)
    return GoldenCase(
        data["id"],
        rate,
        np.repeat(rate[:, [types.index("v100")]], len(types), axis=1),
        np.array([job["scale_factor"] for job in jobs], float),
        np.array([job["priority_weight"] for job in jobs], float),
        np.array([data["cluster_spec"].get(name, 0) for name in types], float),
        np.array([data["instance_costs"][name] for name in types], float),
        steps,
        np.array([job["time_since_start"] for job in jobs], float),
        steps / np.array([np.inf if seconds is None else seconds for seconds in deadlines], float),
        tuple(types),
        tuple(job["job_type"] for job in jobs),
    )


def pairs_of(rows: list[dict[str, Any]]) -> tuple[Ints, Floats]:
    """Pairs of jobs and the rates of both members."""
    return np.array([row["pair"] for row in rows]), np.array([row["throughput_by_worker_type"] for row in rows], float)


def pairs_from_table(case: GoldenCase) -> tuple[Ints, Floats]:
    """All pairs of equal scale, with rates from Gavel's throughput table."""
    table = gavel_table()
    keys = [str((kind, int(scale))) for kind, scale in zip(case.kinds, case.scale, strict=True)]
    twos = [(a, b) for b in range(len(keys)) for a in range(b) if case.scale[a] == case.scale[b]]
    rates = [[table[name][keys[a]][keys[b]] for name in case.types] for a, b in twos]
    return np.array(twos), np.array(rates, float)


def assert_feasible(problem: ShareProblem, solution: Solution) -> Solution:
    """Assert that the solution is feasible and has no alarm; return it."""
    assert solution.alarm == ""
    assert find_violation(problem, solution) == ""
    return solution
