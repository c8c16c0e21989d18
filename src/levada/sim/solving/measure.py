"""Holds the clock: CPU seconds from columns to a model, of the first solve, and of those that follow small changes."""

from __future__ import annotations

import math
import time
from statistics import median

import msgspec

from levada import jit
from levada.errors import BadInput
from levada.perf import Profiles
from levada.plugins import find_policy
from levada.policies.table import lookup
from levada.sim.solving.crowd import Crowd, capacity_of, replaced
from levada.sim.solving.programs import PROGRAMS, Model
from levada.sim.solving.whole import Asked as Whole

#: Later solves, after each of which jobs are replaced; fewer where each takes long.
_LATER, _FEW, _LONG_S = 15, 3, 0.5
#: Loads the solver, and compiles what is compiled, before anything is measured.
_TINY = 24


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure."""

    policy: str
    types: int = 3
    #: GPUs asked for over GPUs there.
    load: float = 2.0
    #: GPUs in all, instead of the load.
    gpus: int | None = None
    seed: int = 0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What `levada bench solve` prints of one size; seconds are of CPU time."""

    policy: str
    jobs: int
    #: Rows that the solver sees: equal jobs are one.
    classes: int
    #: From columns of jobs to the solver's model.
    build_s: float
    #: The median of later solves, each after 2 % of the jobs were replaced: from the model to the shares of all jobs.
    solve_s: float
    #: The first solve.
    cold_s: float
    #: Of the first solve; null for a policy without one.
    objective: float | None


def measure(asked: Asked, profiles: Profiles, sizes: list[int]) -> list[Figures]:
    """The figures of one instance for each size; raises BadInput."""
    _check(asked, sizes)
    jit.install()
    _figures(msgspec.structs.replace(asked, load=2.0, gpus=None), profiles, _TINY, 1)
    return [_figures(asked, profiles, size, _LATER) for size in sizes]


def _check(asked: Asked, sizes: list[int]) -> None:
    record = lookup(asked.policy)
    if record is None:
        find_policy(asked.policy)
    if record is None or not record.shares:
        raise BadInput.one(f"{asked.policy} solves nothing: bench solve is for policies that give shares of time")
    if not 0 < asked.load < math.inf:
        raise BadInput.one("--load must be a number above 0")
    if asked.gpus is not None and asked.gpus < asked.types:
        raise BadInput.one(f"--gpus must be at least {asked.types}, one of each type")
    if not sizes or min(sizes) < 1:
        raise BadInput.one("--jobs must be at least 1")


def _figures(asked: Asked, profiles: Profiles, count: int, times: int) -> Figures:
    crowd = Crowd(profiles, asked.types, asked.seed)
    jobs = crowd.draw(count)
    capacity = capacity_of(jobs, asked.types, load=asked.load, gpus=asked.gpus)
    record = lookup(asked.policy)
    assert record is not None
    program = PROGRAMS.get(record.name)
    # Every share policy comes in rounds, which plain policies do not have.
    policy = None if program is not None else find_policy(asked.policy).policy  # type: ignore[attr-defined]

    start = time.process_time()
    model = (
        Model(program, crowd, jobs, capacity)
        if program is not None
        else Whole(policy, crowd, jobs, capacity, asked.seed)
    )
    built = time.process_time()
    objective = model.solve()
    cold = time.process_time() - built
    classes = model.classes
    later = []
    for _ in range(times if cold < _LONG_S else min(times, _FEW)):
        rows = crowd.leavers(count)
        new = crowd.draw(len(rows))
        jobs = replaced(jobs, rows, new)
        model.change(jobs, rows, new)
        before = time.process_time()
        model.solve()
        later.append(time.process_time() - before)
    return Figures(
        policy=asked.policy,
        jobs=count,
        classes=classes,
        build_s=built - start,
        solve_s=median(later),
        cold_s=cold,
        objective=objective if math.isfinite(objective) else None,
    )
