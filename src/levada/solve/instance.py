"""Made-up problems of any size, to time solvers with."""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.solve.problem import Problem, problem

#: How many jobs of a hundred take so many GPUs.
SCALES = {1: 70, 2: 10, 4: 15, 8: 5}
#: One job in five is worth this much.
IMPORTANT = 5.0
_MODELS = 26


def instance(jobs: int, types: int, load: float, seed: int, table: tuple[Floats, Ints] | None = None) -> Problem:
    """A problem in which *jobs* ask for *load* times the GPUs there are, evenly of all types; the same for one seed.

    *table* holds the rates (kinds, types) and the scale of every kind of job; without it kinds are made up, and
    so are the types that it lacks: each model is faster on some and slower on others.
    """
    random = np.random.default_rng(seed)
    rate, scale = _made_up(random) if table is None else table
    extra = types - rate.shape[1]
    if extra > 0:
        factor = np.exp(random.normal(0.0, 0.5, (len(rate), extra))) * np.exp(random.normal(0.0, 0.7, extra))
        rate = np.concatenate([rate, rate[:, [-1]] * factor], axis=1)
    rate = rate[:, :types]
    wanted = random.choice(list(SCALES), jobs, p=np.array(list(SCALES.values())) / 100)
    kind = np.empty(jobs, np.int64)
    for gpus in SCALES:
        same = np.flatnonzero(scale == gpus)
        kind[wanted == gpus] = random.choice(same if len(same) else np.arange(len(scale)), int((wanted == gpus).sum()))
    weight = np.where(random.random(jobs) < 0.2, IMPORTANT, 1.0)
    demand = float(scale[kind].sum())
    capacity = np.full(types, max(round(demand / load / types), 1), np.float64)
    return problem(rate[kind], capacity, scale=scale[kind], weight=weight)


def _made_up(random: np.random.Generator) -> tuple[Floats, Ints]:
    """Rates on three types, each faster than the one before, of some models at all scales."""
    base = np.exp(random.normal(1.0, 1.5, (_MODELS, 1)))
    step = np.cumsum(np.abs(random.normal(0.6, 0.4, (_MODELS, 3))), axis=1)
    scale = np.array(list(SCALES))
    growth = scale ** random.uniform(0.6, 1.0, (_MODELS, 1))
    rate = (base * np.exp(step))[:, None, :] * growth[:, :, None]
    return rate.reshape(-1, 3), np.tile(scale, _MODELS)
