"""Points inside the optimal face where two jobs may share GPUs; see `interior` and, for pairs, `packed`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.solve.highs import NoAnswer
from levada.solve.interior import CORNER_INSTEAD, searched
from levada.solve.last_filling import Filling, filled
from levada.solve.packed import (
    apart,
    finish_time_packed,
    leximin_packed,
    makespan_packed,
    max_min_packed,
    total_packed,
    with_pairs,
)
from levada.solve.pairs import of_jobs
from levada.solve.problem import Problem, Solution, usable
from levada.solve.safe import safe
from levada.solve.selfdual import Levels, walk
from levada.solve.selfdual_pairs import Together
from levada.solve.selfdual_ratio_pairs import follow_ratio_together
from levada.solve.total import UNMET

#: What a program says of each row's levels, given those of both members per unit of time in each column, and the rows
#: of these members. Only rows that have part in it count. Or what it says of their ratios, see `RatioTogether`.
Duty = Callable[[Floats, Ints, Bools], Levels | Floats]


@safe
def max_min_packed_interior(problem: Problem, pairs: Ints, pair_rate: Floats) -> Solution:
    """See `max_min_packed`. Every two jobs that could share GPUs get a little time together."""

    def rise(reached: Floats, members: Ints, part: Bools) -> Levels:
        rows = (1, int(part.sum()))
        return Levels(reached[None], np.zeros(rows), np.ones(rows), np.ones(rows, np.bool_))

    c, together = with_pairs(problem, pairs, pair_rate)
    return _middle(problem, pairs, c, together, rise) or _corner(max_min_packed(problem, pairs, pair_rate))


@safe
def leximin_packed_interior(problem: Problem, pairs: Ints, pair_rate: Floats, levels: Floats) -> Solution:
    """See `leximin_packed`, whose *levels* these are, and `leximin_interior`."""
    c, together = with_pairs(problem, pairs, pair_rate)
    of = np.arange(len(c)) if problem.of is None else problem.of
    part = (problem.count > 0) & (c.max(axis=1, initial=0.0) > 0)

    def by_row(each: Floats | None) -> Floats:
        rows = np.zeros(len(c))
        rows[of] = each
        return rows[part]

    def solve(filling: Filling) -> tuple[Solution, Floats]:
        found = _middle(problem, pairs, c, together, lambda reached, members, part: filling.levels(reached, members))
        if found is None:
            raise NoAnswer("the path ends nowhere")
        return found, by_row(found.levels)

    try:
        return filled(by_row(levels), problem.scale[part], problem.weight[part], solve)
    except NoAnswer:
        return _corner(leximin_packed(problem, pairs, pair_rate))


@safe
def makespan_packed_interior(
    problem: Problem, pairs: Ints, pair_rate: Floats, steps: Floats, time: float | None = None
) -> Solution:
    """See `makespan_packed` and `makespan_interior`."""
    best = makespan_packed(problem, pairs, pair_rate, steps)
    within = searched(best.bound) if time is None else time
    rows, twos, rates, (left,) = apart(problem, pairs, pair_rate, steps)

    def in_time(reached: Floats, members: Ints, part: Bools) -> Levels:
        need = left[part][None] / within
        return Levels(reached[None], need, np.zeros_like(need), np.ones(need.shape, np.bool_))

    found = _middle(rows, twos, usable(rows), rates, in_time)
    if found is None:
        return _corner(best)
    assert found.levels is not None
    busy = (steps > 0) & (found.levels > 0)
    latest = float((steps[busy] / found.levels[busy]).max(initial=0.0))
    return msgspec.structs.replace(found, level=latest, bound=latest)


@safe
def finish_time_packed_interior(
    problem: Problem, pairs: Ints, pair_rate: Floats, steps: Floats, elapsed: Floats, ideal: Floats
) -> Solution:
    """See `finish_time_packed` and `finish_time_interior`."""
    rows, twos, rates, (left, begun, whole) = apart(problem, pairs, pair_rate, steps, elapsed, ideal)
    found = None
    if ((left > 0) & (whole > 0)).all():
        found = _middle(
            rows, twos, usable(rows), rates, lambda _, __, part: np.stack([left[part], begun[part]]) / whole[part]
        )
    if found is None:
        return _corner(finish_time_packed(problem, pairs, pair_rate, steps, elapsed, ideal))
    assert found.levels is not None
    busy = found.levels > 0
    late = float(((elapsed[busy] + steps[busy] / found.levels[busy]) / ideal[busy]).max(initial=0.0))
    return msgspec.structs.replace(found, level=late, bound=late)


@safe
def total_packed_interior(
    problem: Problem, pairs: Ints, pair_rate: Floats, cost: Floats | None = None, need: Floats | None = None
) -> Solution:
    """See `total_packed`. A *need* below 0, that of a deadline which has passed, is one that is always met."""
    best = total_packed(problem, pairs, pair_rate, cost, need)
    price = np.ones(len(problem.capacity)) if cost is None else cost
    asked = np.zeros(problem.jobs) if need is None or best.alarm == UNMET else need
    rows, twos, rates, (base,) = apart(problem, pairs, pair_rate, asked)

    def floors(reached: Floats, members: Ints, part: Bools) -> Levels:
        sets = int(base.any())
        floor = np.tile(base[part], (sets, 1))
        return Levels(np.tile(reached, (sets, 1, 1)), floor, np.zeros_like(floor), np.ones(floor.shape, np.bool_))

    found = _middle(rows, twos, usable(rows), rates, floors, price)
    if found is None:
        return _corner(best)
    return msgspec.structs.replace(found, level=best.level, bound=best.bound, alarm=best.alarm)


def _corner(best: Solution) -> Solution:
    return msgspec.structs.replace(best, alarm=best.alarm or CORNER_INSTEAD)


def _middle(
    problem: Problem, pairs: Ints, c: Floats, together: Floats, duty: Duty, price: Floats | None = None
) -> Solution | None:
    """The end of the path of the program in which jobs have these duties; None where it ends nowhere.

    Where GPUs have a *price*, as much as possible is reached for the money.
    """
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
    kind = np.tile(np.arange(len(kinds)), len(who))
    reached = both.reshape(-1, 2)
    duties = duty(reached, members, part)
    given = count[part], scale[part], capacity[kinds], members, kind
    try:
        if isinstance(duties, Levels):
            gain = None if price is None else reached.sum(axis=1) / price[kinds][kind]
            x, _ = walk(Together(*given, duties, gain))
        else:
            x = follow_ratio_together(*given, reached, duties)
        x = np.clip(x, 0.0, 1.0).reshape(len(who), len(kinds))
    except NoAnswer:
        return None
    x = np.where(both.any(axis=2), x, 0.0)
    share, pair_share = np.zeros_like(c), np.zeros(together.shape[:2])
    share[np.ix_(here, kinds)], pair_share[np.ix_(two, kinds)] = x[: len(here)], x[len(here) :]
    return _solution(problem, c, together, pairs, share, pair_share)


def _solution(
    problem: Problem, c: Floats, together: Floats, pairs: Ints, share: Floats, pair_share: Floats
) -> Solution:
    """Shares of jobs and of all pairs of jobs, from those of one job or pair of each class."""
    count = problem.count
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


def _mates(count: Floats, pairs: Ints, side: int) -> Floats:
    """Per pair of rows with how many others a job of the row on that *side* runs; where both are one, half on each."""
    twins = pairs[:, 0] == pairs[:, 1]
    return np.where(twins, (count[pairs[:, 0]] - 1) / 2, count[pairs[:, 1 - side]])
