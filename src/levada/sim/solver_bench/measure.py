"""CPU seconds of building a model, the first solve, and later solves."""

from __future__ import annotations

import math
import time
from statistics import median

import msgspec

from levada import jit
from levada.errors import BadInput
from levada.perf import Profiles
from levada.plugins import find_policy
from levada.policies.registry import lookup
from levada.sim.solver_bench.population import Population, capacity_of, replace_jobs
from levada.sim.solver_bench.programs import PROGRAMS, BenchModel
from levada.sim.solver_bench.whole_policies import PolicyBench

#: Number of later solves; fewer if the first one takes long.
_LATER, _FEW, _LONG_S = 15, 3, 0.5
#: Jobs of the warm-up, which loads the solver and compiles kernels.
_TINY = 24


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Instance to measure."""

    policy: str
    types: int = 3
    #: Requested GPUs divided by GPUs of the cluster.
    load: float = 2.0
    #: Total GPUs; overrides the load.
    gpus: int | None = None
    seed: int = 0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `levada bench solve` for one size; seconds are CPU time."""

    policy: str
    jobs: int
    #: Rows of the solver: equal jobs form one class.
    classes: int
    #: Time to build the solver's model from columns of jobs.
    build_s: float
    #: Median of later solves, each after 2 % of the jobs were replaced: from the model to the shares of all jobs.
    solve_s: float
    #: The first solve.
    cold_s: float
    #: Objective of the first solve; null if the policy has none.
    objective: float | None


def measure(settings: BenchSettings, profiles: Profiles, sizes: list[int]) -> list[Figures]:
    """Return the figures for each number of jobs; raises BadInput."""
    _check(settings, sizes)
    jit.install()
    _figures(msgspec.structs.replace(settings, load=2.0, gpus=None), profiles, _TINY, 1)
    return [_figures(settings, profiles, size, _LATER) for size in sizes]


def _check(settings: BenchSettings, sizes: list[int]) -> None:
    record = lookup(settings.policy)
    if record is None:
        find_policy(settings.policy)
    if record is None or not record.shares:
        raise BadInput.one(f"{settings.policy} solves nothing: bench solve needs a policy that computes shares of time")
    if not 0 < settings.load < math.inf:
        raise BadInput.one("--load must be a number above 0")
    if settings.gpus is not None and settings.gpus < settings.types:
        raise BadInput.one(f"--gpus must be at least {settings.types}, one of each type")
    if not sizes or min(sizes) < 1:
        raise BadInput.one("--jobs must be at least 1")


def _figures(settings: BenchSettings, profiles: Profiles, count: int, times: int) -> Figures:
    population = Population(profiles, settings.types, settings.seed)
    jobs = population.draw(count)
    capacity = capacity_of(jobs, settings.types, load=settings.load, gpus=settings.gpus)
    record = lookup(settings.policy)
    assert record is not None
    program = PROGRAMS.get(record.name)
    # Every share policy is wrapped in rounds, which other policies do not have.
    policy = None if program is not None else find_policy(settings.policy).policy  # type: ignore[attr-defined]

    start = time.process_time()
    model = (
        BenchModel(program, population, jobs, capacity)
        if program is not None
        else PolicyBench(policy, population, jobs, capacity, settings.seed)
    )
    built = time.process_time()
    objective = model.solve()
    cold = time.process_time() - built
    classes = model.classes
    later = []
    for _ in range(times if cold < _LONG_S else min(times, _FEW)):
        rows = population.draw_leaving(count)
        new = population.draw(len(rows))
        jobs = replace_jobs(jobs, rows, new)
        model.change(jobs, rows, new)
        before = time.process_time()
        model.solve()
        later.append(time.process_time() - before)
    return Figures(
        policy=settings.policy,
        jobs=count,
        classes=classes,
        build_s=built - start,
        solve_s=median(later),
        cold_s=cold,
        objective=objective if math.isfinite(objective) else None,
    )
