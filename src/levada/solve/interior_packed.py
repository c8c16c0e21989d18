"""Points inside the optimal face where two jobs may share GPUs; see `interior` and, for pairs, `packed`."""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Floats, Ints
from levada.solve.highs import NoAnswer
from levada.solve.interior import CORNER_INSTEAD
from levada.solve.last_filling import last_filling
from levada.solve.packed import leximin_packed, max_min_packed, with_pairs
from levada.solve.pairs import of_jobs
from levada.solve.problem import Problem, Solution
from levada.solve.safe import safe
from levada.solve.selfdual import Levels, walk
from levada.solve.selfdual_pairs import Together


@safe
def max_min_packed_interior(problem: Problem, pairs: Ints, pair_rate: Floats) -> Solution:
    """See `max_min_packed`. Every two jobs that could share GPUs get a little time together."""
    return _middle(problem, pairs, pair_rate, None)


@safe
def leximin_packed_interior(problem: Problem, pairs: Ints, pair_rate: Floats, levels: Floats) -> Solution:
    """See `leximin_packed`, whose *levels* these are, and `leximin_interior`."""
    return _middle(problem, pairs, pair_rate, levels)


def _middle(problem: Problem, pairs: Ints, pair_rate: Floats, levels: Floats | None) -> Solution:
    """The end of the path of max-min; or, for jobs that reach these *levels*, of the last program of water-filling."""
    c, together = with_pairs(problem, pairs, pair_rate)
    count, scale, capacity = problem.count, problem.scale, problem.capacity
    part = (count > 0) & (c.max(axis=1, initial=0.0) > 0)
    kinds = np.flatnonzero(capacity > 0)
    if not part.any() or not len(kinds):
        return _solution(problem, c, together, pairs, np.zeros_like(c), np.zeros(together.shape[:2]))
    here = np.flatnonzero(part)
    a, b = pairs.T
    two = np.flatnonzero(part[a] & part[b] & (scale[a] == scale[b]) & ((a != b) | (count[a] > 1)))
    who = np.concatenate([np.column_stack([here, np.full(len(here), -1)]), pairs[two]])
    both = np.concatenate([np.stack([c[here], np.zeros_like(c[here])], axis=2), together[two]])[:, kinds]
    members = np.repeat(np.where(who >= 0, (np.cumsum(part) - 1)[who], -1), len(kinds), axis=0)
    reached = both.reshape(-1, 2)
    if levels is None:
        rows = len(here)
        duties = Levels(reached[None], np.zeros((1, rows)), np.ones((1, rows)), np.ones((1, rows), np.bool_))
    else:
        final = np.zeros(len(c))
        final[np.arange(len(c)) if problem.of is None else problem.of] = levels
        duties = last_filling(final[part], scale[part], problem.weight[part]).levels(reached, members)
    kind = np.tile(np.arange(len(kinds)), len(who))
    program = Together(count[part], scale[part], capacity[kinds], members, kind, duties)
    try:
        x = np.maximum(walk(program)[0], 0.0).reshape(len(who), len(kinds))
    except NoAnswer:
        corner = (max_min_packed if levels is None else leximin_packed)(problem, pairs, pair_rate)
        return msgspec.structs.replace(corner, alarm=corner.alarm or CORNER_INSTEAD)
    x = np.where(both.any(axis=2), x, 0.0)
    share, pair_share = np.zeros_like(c), np.zeros(together.shape[:2])
    share[np.ix_(here, kinds)], pair_share[np.ix_(two, kinds)] = x[: len(here)], x[len(here) :]
    return _solution(problem, c, together, pairs, share, pair_share)


def _solution(
    problem: Problem, c: Floats, together: Floats, pairs: Ints, share: Floats, pair_share: Floats
) -> Solution:
    """Shares of jobs and of all pairs of jobs, from those of one job or pair of each class."""
    count = problem.count
    share, pair_share = _fit(problem, pairs, share, pair_share)
    levels = (c * share).sum(axis=1)
    for side in (0, 1):
        np.add.at(levels, pairs[:, side], _mates(count, pairs, side) * (together[:, :, side] * pair_share).sum(axis=1))
    part = (count > 0) & (c.max(axis=1, initial=0.0) > 0)
    level = float(levels[part].min(initial=np.inf)) if part.any() else 0.0
    used = pair_share.any(axis=1)
    of = np.arange(len(count)) if problem.of is None else problem.of
    who, source = of_jobs(pairs[used], of, len(count))
    apart = who[:, 0] != who[:, 1]
    return Solution(
        share=problem.each(share),
        level=level,
        bound=level,
        prices=np.zeros(len(problem.capacity)),
        how="interior",
        levels=problem.each(levels),
        pairs=who[apart],
        pair_share=pair_share[used][source[apart]],
    )


def _fit(problem: Problem, pairs: Ints, share: Floats, pair_share: Floats) -> tuple[Floats, Floats]:
    """These, scaled down where rounding let them take more time or GPUs than there are."""
    count, scale = problem.count, problem.scale
    time = share.sum(axis=1)
    for side in (0, 1):
        np.add.at(time, pairs[:, side], _mates(count, pairs, side) * pair_share.sum(axis=1))
    late = np.maximum(time, 1.0)
    share = share / late[:, None]
    pair_share = pair_share / late[pairs].max(axis=1)[:, None]
    many = count[pairs[:, 0]] * _mates(count, pairs, 0)
    use = (count * scale) @ share + (many * scale[pairs[:, 0]]) @ pair_share
    tight = np.divide(problem.capacity, use, out=np.ones_like(use), where=use > problem.capacity)
    return share * tight, pair_share * tight


def _mates(count: Floats, pairs: Ints, side: int) -> Floats:
    """Per pair of rows with how many others a job of the row on that *side* runs; where both are one, half on each."""
    twins = pairs[:, 0] == pairs[:, 1]
    return np.where(twins, (count[pairs[:, 0]] - 1) / 2, count[pairs[:, 1 - side]])
