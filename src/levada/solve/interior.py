"""Points inside an optimal face. Interior-point solvers end there, simplex ends in a corner; all are optimal.

Published results of policies that ask an interior-point solver depend on its choice: every job gets a little of every
type. To repeat them, take these shares; to run jobs well, take `leximin`. All follow the path of such a solver
(`selfdual`), which ends near where it ended, not in the middle. Where the path ends nowhere, the middle of the face
(`central`) is taken, or of water-filling and of pairs a corner. Shares are as such a solver gives them: time and GPUs
may be a billionth more than there are.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Bools, Floats
from levada.kernels import classes
from levada.solve.central import centre
from levada.solve.classes import classify
from levada.solve.finish_time import Duties, finish_time, makespan
from levada.solve.highs import NoAnswer
from levada.solve.last_filling import Filling, filled
from levada.solve.leximin import leximin
from levada.solve.problem import Problem, Solution, normalised, usable
from levada.solve.safe import safe
from levada.solve.selfdual import Levels, follow
from levada.solve.selfdual_ratio import follow_ratio
from levada.solve.total import UNMET, total

#: Told where the path ends nowhere and there is no middle to take instead.
CORNER_INSTEAD = "no point inside the optimal face was found: a corner of it stands in, with the same objective"


@safe
def max_min_interior(problem: Problem) -> Solution:
    """See `max_min`."""
    rows = classify(problem)
    c, count = normalised(rows), rows.count
    part = (count > 0) & (c.max(axis=1, initial=0.0) > 0)
    if not part.any():
        return _solution(rows, np.zeros_like(c), 0.0, c)
    unit = float(c.max(axis=1)[part].min())
    try:
        share = _path(rows, c, part, pace=np.ones(len(c)))
    except NoAnswer:
        share = centre(c / unit, count, count * rows.scale, rows.capacity, pace=part.astype(float)).share
    share = np.clip(share, 0.0, 1.0)
    return _solution(rows, share, float((c * share).sum(axis=1)[part].min()), c)


@safe
def leximin_interior(problem: Problem, levels: Floats | None = None) -> Solution:
    """See `leximin`, whose *levels* are found where they are not given; and `filled`."""
    if levels is None:
        best = leximin(problem)
        assert best.levels is not None
        levels = best.levels
    rows = classify(problem)
    c, count = normalised(rows), rows.count
    part = (count > 0) & (c.max(axis=1, initial=0.0) > 0)
    if not part.any():
        return _solution(rows, np.zeros_like(c), 0.0, c)
    final = np.zeros(len(c))
    final[rows.of] = levels
    kinds = rows.capacity > 0
    cell = np.ix_(part, kinds)
    given = count[part], rows.scale[part], rows.capacity[kinds]

    def solve(filling: Filling) -> tuple[Floats, Floats]:
        found, _ = follow(*given, filling.levels(c[cell], np.arange(int(part.sum()))[:, None]))
        return found, (c[cell] * found).sum(axis=1)

    share = np.zeros_like(c)
    try:
        share[cell] = filled(final[part], rows.scale[part], rows.weight[part], solve)
    except NoAnswer:
        corner = leximin(problem)
        return msgspec.structs.replace(corner, alarm=corner.alarm or CORNER_INSTEAD)
    share = np.where(c > 0, np.clip(share, 0.0, 1.0), 0.0)
    return _solution(rows, share, float((c * share).sum(axis=1)[part].min()), c)


@safe
def total_interior(problem: Problem, cost: Floats | None = None, need: Floats | None = None) -> Solution:
    """See `total`."""
    alarm = total(problem, cost, need).alarm if need is not None else ""
    needs = np.zeros(problem.jobs) if need is None or alarm == UNMET else np.maximum(need, 0.0)
    rows, (base,) = _apart(problem, needs)
    rate, count = usable(rows), rows.count
    worth = rate if cost is None else rate / cost
    part = (count > 0) & (rate.max(axis=1, initial=0.0) > 0)
    if not part.any():
        return _solution(rows, np.zeros_like(rate), 0.0, rate, alarm)
    try:
        share = _path(rows, rate, part, gain=worth, base=base, levels=base > 0)
    except NoAnswer:
        best = np.maximum(rate.max(axis=1, initial=0.0), 1e-300)
        gain = count[:, None] * worth / float((count[:, None] * worth).max())
        c, gpus = rate / best[:, None], count * rows.scale
        share = centre(c, count, gpus, rows.capacity, gain=gain, base=base / best, floors=base > 0).share
    share = np.clip(share, 0.0, 1.0)
    return _solution(rows, share, float((count[:, None] * worth * share).sum()), rate, alarm)


@safe
def makespan_interior(problem: Problem, steps: Floats, time: float | None = None) -> Solution:
    """See `makespan`; any shares that end within *time* seconds will do, by default those of `searched`."""
    zeros = np.zeros(problem.jobs)
    if time is None:
        time = searched(makespan(problem, steps).level)
    return _within(problem, Duties(steps, zeros, zeros + 1.0), time, roomy=True)


def searched(least: float) -> float:
    """Where the published policy ends its search for the *least* time: it halves until it is within 5 %."""
    low, high, top = 100.0, 1e6, 1e6
    found = least if not np.isfinite(least) else None
    while found is None:
        while 1.05 * low < high:
            middle = (low + high) / 2
            if middle >= least:
                found = high = middle
            else:
                low = middle
        low, high, top = top, 10 * top, 10 * top
    return found


@safe
def finish_time_interior(problem: Problem, steps: Floats, elapsed: Floats, ideal: Floats) -> Solution:
    """See `finish_time`."""
    runs = problem.each(usable(problem).max(axis=1, initial=0.0)) > 0
    rows, (left, begun, whole) = _apart(problem, *(np.where(runs, column, 0.0) for column in (steps, elapsed, ideal)))
    rate, kinds = usable(rows), rows.capacity > 0
    part = (rows.count > 0) & (left > 0) & (whole > 0)
    if not part.any():
        return _solution(rows, np.zeros_like(rate), 0.0, rate)
    given = rows.count[part], rows.scale[part], rows.capacity[kinds], rate[np.ix_(part, kinds)]
    try:
        found, ratio = follow_ratio(*given, left[part] / whole[part], begun[part] / whole[part])
    except NoAnswer:
        least = finish_time(problem, steps, elapsed, ideal).level
        return _within(problem, Duties(steps, elapsed, ideal), least)
    share = np.zeros_like(rate)
    share[np.ix_(part, kinds)] = found
    return _solution(rows, np.where(rate > 0, np.clip(share, 0.0, 1.0), 0.0), ratio, rate)


def _within(problem: Problem, duties: Duties, ratio: float, roomy: bool = False) -> Solution:
    """Shares with which no ratio is larger; *roomy* if there should be more than one way to have them."""
    runs = problem.each(usable(problem).max(axis=1, initial=0.0)) > 0
    part = runs & (duties.steps > 0) & (duties.ideal > 0)
    need = np.zeros(problem.jobs)
    mine = Duties(duties.steps[part], duties.elapsed[part], duties.ideal[part])
    # A hair less than needed: without any inside there is no middle.
    need[part] = mine.need(ratio) * (1.0 if roomy else 1 - 1e-7)
    rows, (base,) = _apart(problem, need)
    rate, count = usable(rows), rows.count
    gpus = count * rows.scale
    runs = (count > 0) & (rate.max(axis=1, initial=0.0) > 0)
    share = np.zeros_like(rate)
    if runs.any():
        try:
            if not roomy:
                raise NoAnswer("a path needs room")
            share = _path(rows, rate, runs, base=base, levels=base > 0)
        except NoAnswer:
            best = np.maximum(rate.max(axis=1, initial=0.0), 1e-300)
            c = rate / best[:, None]
            share = centre(c, count, gpus, rows.capacity, base=base / best, floors=base > 0, mu=1.0).share
    share = np.clip(share, 0.0, 1.0)
    reached = rows.each((rate * share).sum(axis=1))[part]
    late = (mine.elapsed + mine.steps / np.maximum(reached, 1e-300)) / mine.ideal
    return _solution(rows, share, float(late.max(initial=0.0)), rate)


def _path(
    rows: Problem,
    c: Floats,
    part: Bools,
    gain: Floats | None = None,
    pace: Floats | None = None,
    base: Floats | None = None,
    levels: Bools | None = None,
) -> Floats:
    """The end of the path for rows that have part in it; nothing on types where a row cannot run."""
    kinds = rows.capacity > 0
    cell = np.ix_(part, kinds)
    share = np.zeros_like(c)
    floor, rise = (None if column is None else column[part] for column in (base, pace))
    has = np.ones(int(part.sum()), np.bool_) if levels is None else levels[part]
    found = Levels.of(c[cell], floor, rise, has)
    gains = None if gain is None else gain[cell]
    share[cell], _ = follow(rows.count[part], rows.scale[part], rows.capacity[kinds], found, gains)
    return np.where(c > 0, np.maximum(share, 0.0), 0.0)


def _apart(problem: Problem, *columns: Floats) -> tuple[Problem, list[Floats]]:
    """The problem with jobs of one row apart that differ in *columns*, and these by row."""
    rows = classify(problem)
    assert rows.of is not None
    first, of = classes.distinct_rows(np.column_stack([rows.of.astype(np.float64), *columns]))
    old = rows.of[first]
    apart = Problem(
        rate=rows.rate[old],
        scale=rows.scale[old],
        weight=rows.weight[old],
        entity=rows.entity[old],
        capacity=rows.capacity,
        of=of,
    )
    return apart, [column[first] for column in columns]


def _solution(rows: Problem, share: Floats, level: float, c: Floats, alarm: str = "") -> Solution:
    return Solution(
        share=rows.each(share),
        level=level,
        bound=level,
        prices=np.zeros(len(rows.capacity)),
        how="interior",
        alarm=alarm,
        levels=rows.each((c * share).sum(axis=1)),
    )
