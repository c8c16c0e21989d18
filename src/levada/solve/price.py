"""Prices instead of a linear program: the accelerator behind `max_min`, `leximin`, `efficient` and `finish_time`.

Each answer comes with its proof; None means that there was none, and the caller asks HiGHS.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels import efficient as efficient_kernels
from levada.kernels import price, price_shares
from levada.solve.groups import Groups
from levada.solve.problem import TRACE, Problem, Solution, Warm
from levada.solve.requirements import Speeds

#: Shares, bound, prices, method and warm start.
Found = tuple[Floats, float, Floats, str, Warm]

#: The gap between what is reached and what is proved, relative: where to stop, and what is accepted.
_STOP, _PROVED = 1e-11, 1e-9
#: Ratios tried before HiGHS is asked.
_MOST = 100


def max_level(c: Floats, gpus: Floats, capacity: Floats, pace: Floats, warm: Warm | None) -> Found | None:
    """The largest t with `c x >= pace t` for all rows that can run."""
    rows, kinds = _part(c, gpus, capacity)
    if not len(rows) or not (pace[rows] > 0).all():
        return None
    mine = np.ascontiguousarray(c[np.ix_(rows, kinds)])
    zeros = np.zeros(len(rows))
    still = np.zeros_like(mine)
    found, _, bound, x, prices, plans = price.max_level(
        mine, gpus[rows], capacity[kinds], zeros, pace[rows], still, _seeds(warm, kinds, len(capacity)), _STOP
    )
    if not found:
        return None
    reached = float(((mine * x).sum(axis=1) / pace[rows]).min())
    if reached < bound * (1 - _PROVED) or not _fits(x, gpus[rows], capacity[kinds]):
        return None
    share = np.zeros_like(c)
    share[np.ix_(rows, kinds)] = x
    return (
        share,
        bound,
        _spread(prices, kinds, len(capacity)),
        "price",
        Warm(prices=_spread(plans, kinds, len(capacity))),
    )


def leximin(rows: Problem, warm: Warm | None) -> Solution | None:
    """Shares of lexicographically largest levels."""
    types = len(rows.capacity)
    seeds = np.zeros((0, types))
    if warm is not None and warm.prices is not None and warm.prices.shape[1] == types:
        seeds = warm.prices
    found, share, levels, level, bound, prices, plans = price_shares.leximin_shares(
        rows.rate, rows.scale, rows.weight, rows.count, rows.capacity, seeds, _STOP, _PROVED, TRACE
    )
    if not found:
        return None
    return Solution(
        share=rows.each(share),
        level=level,
        bound=bound,
        prices=prices,
        how="price",
        warm=Warm(prices=plans),
        levels=rows.each(levels),
    )


def efficient(rows: Problem, floor: float, groups: Groups) -> Solution | None:
    """Shares of the most speed above a part of what leximin gives."""
    found, share, levels, level, bound, prices = efficient_kernels.efficient_shares(
        rows.rate,
        rows.scale,
        rows.weight,
        rows.count,
        rows.capacity,
        floor,
        groups.row,
        groups.favour,
        groups.count,
        _STOP,
        _PROVED,
        TRACE,
    )
    if not found:
        return None
    return Solution(
        share=share.take(groups.of, axis=0),
        level=level,
        bound=bound,
        prices=prices,
        how="price",
        levels=levels.take(groups.of),
    )


def least_ratio(
    given: Speeds, steps: Floats, elapsed: Floats, ideal: Floats, start: float, warm: Warm | None
) -> Found | None:
    """Totals by class at the least finish-time ratio from *start* upwards."""
    rows, kinds = _part(given.rate, given.count, given.capacity)
    number = np.full(len(given.rate), -1)
    number[rows] = np.arange(len(rows))
    of = number[given.of]
    rate = np.ascontiguousarray(given.rate[np.ix_(rows, kinds)])
    scale, capacity = given.scale[rows], given.capacity[kinds]
    corner = np.concatenate([np.zeros((len(rows), 1)), np.sort(rate, axis=1)], axis=1)
    seeds = _seeds(warm, kinds, len(given.capacity))
    prices = np.zeros(len(kinds))
    ratio = start
    for _ in range(_MOST):
        jobs = price.virtual_jobs(corner, of, steps / (ratio * ideal - elapsed))
        row, at = np.nonzero((jobs > 0) & (corner > 0))
        need, q = corner[row, at], jobs[row, at] * scale[row]
        zeros, still = np.zeros(len(row)), np.zeros((len(row), len(kinds)))
        mine = rate[row] / need[:, None]
        found, level, bound, x, proof, seeds = price.max_level(
            mine, q, capacity, zeros, np.ones(len(row)), still, seeds, _STOP
        )
        if not found or not _fits(x, q, capacity):
            return None
        if level >= 1 - 1e-10 or (bound <= 1 - 1e-9 and not proof.any()):
            break
        prices = proof
        following = price.affordable_ratio(rate, scale, capacity, of, steps, elapsed, ideal, proof, ratio)
        if following <= ratio * (1 + 1e-13):
            break
        ratio = following
    else:
        return None
    if level < 1 - 1e-9:
        return None
    mass = np.zeros_like(given.rate)
    for kind, place in enumerate(kinds.tolist()):
        mass[rows, place] = np.bincount(row, jobs[row, at] * x[:, kind], len(rows))
    types = len(given.capacity)
    return mass, ratio, _spread(prices, kinds, types), "price", Warm(prices=_spread(seeds, kinds, types))


def _part(c: Floats, gpus: Floats, capacity: Floats) -> tuple[Ints, Ints]:
    """Rows and types that have a part in it."""
    kinds = np.flatnonzero((capacity > 0) & (c > 0).any(axis=0))
    return np.flatnonzero((gpus > 0) & (c[:, kinds] > 0).any(axis=1)), kinds


def _seeds(warm: Warm | None, kinds: Ints, types: int) -> Floats:
    """The prices to start with, for these types."""
    if warm is None or warm.prices is None or warm.prices.shape[1] != types:
        return np.zeros((0, len(kinds)))
    return np.ascontiguousarray(warm.prices[:, kinds])


def _spread(prices: Floats, kinds: Ints, types: int) -> Floats:
    """The same with a place for every type."""
    wide = np.zeros((*prices.shape[:-1], types))
    wide[..., kinds] = prices
    return wide


def _fits(share: Floats, gpus: Floats, capacity: Floats) -> bool:
    """Whether these shares exceed neither time nor GPUs."""
    return bool((share.sum(axis=1) <= 1 + _PROVED).all() and (gpus @ share <= capacity * (1 + _PROVED)).all())
