"""Random problems of any size."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.solve.problem import ShareProblem, problem

#: Percentage of jobs by number of GPUs.
SCALES = {1: 70, 2: 10, 4: 15, 8: 5}
#: Weight of one job in five.
IMPORTANT = 5.0
_MODELS = 26


def random_problem(
    jobs: int, types: int, load: float, seed: int, table: tuple[Floats, Ints] | None = None
) -> ShareProblem:
    """A problem of *jobs* that demand *load* times the capacity, with equal capacity of all types.

    *table* holds the rates (kinds, types) and the scale of every kind of job. Without it kinds are random, and
    so are the types that it lacks. The result is a function of the arguments.
    """
    random = np.random.default_rng(seed)
    rate, scale = _random_kinds(random) if table is None else table
    extra = types - rate.shape[1]
    if extra > 0:
        factor = np.exp(random.normal(0.0, 0.5, (len(rate), extra))) * np.exp(random.normal(0.0, 0.7, extra))
        rate = np.concatenate([rate, rate[:, [-1]] * factor], axis=1)
    rate = rate[:, :types]
    scale_of_job = random.choice(list(SCALES), jobs, p=np.array(list(SCALES.values())) / 100)
    kind = np.empty(jobs, np.int64)
    for gpus in SCALES:
        same = np.flatnonzero(scale == gpus)
        kind[scale_of_job == gpus] = random.choice(
            same if len(same) else np.arange(len(scale)), int((scale_of_job == gpus).sum())
        )
    weight = np.where(random.random(jobs) < 0.2, IMPORTANT, 1.0)
    demand = float(scale[kind].sum())
    capacity = np.full(types, max(round(demand / load / types), 1), np.float64)
    return problem(rate[kind], capacity, scale=scale[kind], weight=weight)


def _random_kinds(random: np.random.Generator) -> tuple[Floats, Ints]:
    """Rates of models at all scales on three types of rising speed."""
    base = np.exp(random.normal(1.0, 1.5, (_MODELS, 1)))
    step = np.cumsum(np.abs(random.normal(0.6, 0.4, (_MODELS, 3))), axis=1)
    scale = np.array(list(SCALES))
    growth = scale ** random.uniform(0.6, 1.0, (_MODELS, 1))
    rate = (base * np.exp(step))[:, None, :] * growth[:, :, None]
    return rate.reshape(-1, 3), np.tile(scale, _MODELS)
