"""Price method: a faster alternative to HiGHS for four objectives.

The objectives are `max_min`, `leximin`, `efficient` and `finish_time`. A result is proved by a bound. None = no proof;
the caller uses HiGHS.
"""

from __future__ import annotations

import numpy as np

from levada.core.types import Floats, Ints
from levada.kernels import efficient as efficient_kernels
from levada.kernels import price, price_shares
from levada.solve.groups import Groups
from levada.solve.problem import TRACE, ShareProblem, Solution, WarmStart
from levada.solve.requirements import ClassSpeeds

#: Shares, bound, prices, method and warm start.
PriceResult = tuple[Floats, float, Floats, str, WarmStart]

#: Relative gap between level and bound: at which to stop, and which to accept.
_STOP, _PROVED = 1e-11, 1e-9
#: Maximum number of ratios before HiGHS is used.
_MAX_RATIOS = 100


def max_level(c: Floats, gpus: Floats, capacity: Floats, slope: Floats, warm: WarmStart | None) -> PriceResult | None:
    """Maximize t with `c x >= slope t` for all runnable rows."""
    rows, kinds = _active(c, gpus, capacity)
    if not len(rows) or not (slope[rows] > 0).all():
        return None
    active_c = np.ascontiguousarray(c[np.ix_(rows, kinds)])
    zeros = np.zeros(len(rows))
    fixed_share = np.zeros_like(active_c)
    solved, _, bound, x, prices, plans = price.max_level(
        active_c,
        gpus[rows],
        capacity[kinds],
        zeros,
        slope[rows],
        fixed_share,
        _seeds(warm, kinds, len(capacity)),
        _STOP,
    )
    if not solved:
        return None
    reached = float(((active_c * x).sum(axis=1) / slope[rows]).min())
    if reached < bound * (1 - _PROVED) or not _fits(x, gpus[rows], capacity[kinds]):
        return None
    share = np.zeros_like(c)
    share[np.ix_(rows, kinds)] = x
    return (
        share,
        bound,
        _widen(prices, kinds, len(capacity)),
        "price",
        WarmStart(prices=_widen(plans, kinds, len(capacity))),
    )


def leximin(rows: ShareProblem, warm: WarmStart | None) -> Solution | None:
    """See `solve.leximin`."""
    types = len(rows.capacity)
    seeds = np.zeros((0, types))
    if warm is not None and warm.prices is not None and warm.prices.shape[1] == types:
        seeds = warm.prices
    solved, share, levels, level, bound, prices, plans = price_shares.leximin_shares(
        rows.rate, rows.scale, rows.weight, rows.count, rows.capacity, seeds, _STOP, _PROVED, TRACE
    )
    if not solved:
        return None
    return Solution(
        share=rows.per_job(share),
        level=level,
        bound=bound,
        prices=prices,
        method="price",
        warm=WarmStart(prices=plans),
        levels=rows.per_job(levels),
    )


def efficient(rows: ShareProblem, floor: float, groups: Groups) -> Solution | None:
    """See `solve.efficient`."""
    solved, share, levels, level, bound, prices = efficient_kernels.efficient_shares(
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
    if not solved:
        return None
    return Solution(
        share=share.take(groups.of, axis=0),
        level=level,
        bound=bound,
        prices=prices,
        method="price",
        levels=levels.take(groups.of),
    )


def least_ratio(
    classes: ClassSpeeds, steps: Floats, elapsed: Floats, ideal: Floats, start: float, warm: WarmStart | None
) -> PriceResult | None:
    """Total time by class at the minimal finish-time ratio, which is at least *start*."""
    seeds = _seeds(warm, np.arange(len(classes.capacity)), len(classes.capacity))
    solved, mass, ratio, prices, plans = price.least_ratio(
        classes.rate,
        classes.scale,
        classes.count,
        classes.capacity,
        classes.of,
        steps,
        elapsed,
        ideal,
        start,
        seeds,
        _MAX_RATIOS,
        _STOP,
        _PROVED,
    )
    return (mass, ratio, prices, "price", WarmStart(prices=plans)) if solved else None


def _active(c: Floats, gpus: Floats, capacity: Floats) -> tuple[Ints, Ints]:
    """Runnable rows, and the types that they can use."""
    kinds = np.flatnonzero((capacity > 0) & (c > 0).any(axis=0))
    return np.flatnonzero((gpus > 0) & (c[:, kinds] > 0).any(axis=1)), kinds


def _seeds(warm: WarmStart | None, kinds: Ints, types: int) -> Floats:
    """The initial prices of these types."""
    if warm is None or warm.prices is None or warm.prices.shape[1] != types:
        return np.zeros((0, len(kinds)))
    return np.ascontiguousarray(warm.prices[:, kinds])


def _widen(prices: Floats, kinds: Ints, types: int) -> Floats:
    """Expand prices of these types to all types; others are 0."""
    wide = np.zeros((*prices.shape[:-1], types))
    wide[..., kinds] = prices
    return wide


def _fits(share: Floats, gpus: Floats, capacity: Floats) -> bool:
    """Whether these shares fit into time and capacity."""
    return bool((share.sum(axis=1) <= 1 + _PROVED).all() and (gpus @ share <= capacity * (1 + _PROVED)).all())
