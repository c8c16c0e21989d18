"""Interior points: shares that maximise a sum of logarithms, found by Newton's method on primal and dual together.

    max  gain . x + rise t + sum of logs :   x > 0,   1 - sum_k x_ik > 0,   capacity_k - sum_i gpus_i x_ik > 0,
                                             sum_k c_ik x_ik - pace_i t - base_i > 0

The logs weigh *mu* each, times the jobs a row stands for, and mu falls: the end is the centre of the optimal face. By
symmetry classes are exact here, too. Rows touch each other only through capacities and t, so a step costs
O(rows types^3) whatever the number of rows.
"""

from __future__ import annotations

import msgspec
import numpy as np

from levada.core.types import Bools, Floats
from levada.solve.highs import NoAnswer

_STEPS = 300
#: From here on the point is as good as the last one.
_SMALL = 1e-7
#: Part of the way to the nearest wall that a step goes at most.
_WAY = 0.99
#: Products of a slack and its dual must be this near to what they should be before mu falls; and at the end.
_CENTRED, _CENTRED_AT_LAST = 0.5, 1e-7


class Centre(msgspec.Struct, frozen=True):
    """Where the search ended."""

    share: Floats
    t: float
    prices: Floats


def centre(
    c: Floats,
    count: Floats,
    gpus: Floats,
    capacity: Floats,
    *,
    gain: Floats | None = None,
    pace: Floats | None = None,
    base: Floats | None = None,
    floors: Bools | None = None,
    mu: float = 1e-9,
    worth: float = 0.0,
) -> Centre:
    """The central point for *mu*. *gain* (rows, types) is of full shares of all jobs of a row.

    *floors* says which rows must rise above their base; with *pace*, t is maximised; with *worth*, the logs of levels
    weigh that instead of mu (Nash). Without any of these mu does not matter: take 1. Scale the data so that levels and
    gains are about 1.
    """
    rows, types = c.shape
    free = (c > 0) & (capacity > 0) & (count > 0)[:, None]
    c = np.where(free, c, 0.0)
    use = gpus[:, None] * free
    kinds = capacity > 0
    space = np.where(kinds, capacity, 1.0)
    use, space = use / space, np.ones(types)  # GPUs as parts of all there are
    level = (free.any(axis=1) if floors is None else floors & free.any(axis=1)).astype(float)
    speed = np.zeros(rows) if pace is None else pace * level
    floor = np.zeros(rows) if base is None else base
    rise = 1.0 if pace is not None else 0.0
    push = np.zeros((rows, types)) if gain is None else np.where(free, gain, 0.0)
    many = np.maximum(count, 1.0)

    x = np.where(free, 0.5 * np.minimum(1.0 / types, space / np.maximum(use.sum(axis=0), 1e-300)), 1.0)
    t = 0.0
    time = 1.0 - (x * free).sum(axis=1)
    room = space - (use * x).sum(axis=0)
    over = np.where(level > 0, np.maximum((c * x).sum(axis=1) - floor, 0.1), 1.0)
    now = 1.0
    aim_level = many * (worth if worth > 0 else now)
    zx, zu, zv, zl = now * many[:, None] / x, now * many / time, now / room, level * aim_level / over
    for _ in range(_STEPS):
        aim_x, aim_u, aim_v = now * many[:, None], now * many, now
        aim_level = many * (worth if worth > 0 else now)
        dx, du, dv, dl = zx / x, zu / time, zv / room, zl / over
        short = level * ((c * x).sum(axis=1) - speed * t - floor - over)
        pull = push + aim_x / x - (aim_u / time)[:, None] - use * (aim_v / room)
        lift = level * (aim_level / over - dl * short)
        pull = (pull + c * lift[:, None]) * free
        try:
            step, common = _direction(free, c, use, pull, dx, du, dv, dl * level, speed, rise - speed @ lift, rise > 0)
        except np.linalg.LinAlgError:
            if now > _SMALL:
                raise
            break  # as near to the walls as numbers can tell
        step_t = float(common[types])
        step_time = -step.sum(axis=1)
        step_room = -common[:types] / dv  # as a difference of sums it would drown in rounding once little is left
        step_over = level * ((c * step).sum(axis=1) - speed * step_t + short)
        turn_x = (aim_x - zx * step) / x - zx
        turn_u = (aim_u - zu * step_time) / time - zu
        turn_v = (aim_v - zv * step_room) / room - zv
        turn_l = level * ((aim_level - zl * step_over) / over - zl)
        primal = _way((x, step * free), (time, step_time), (room, step_room), (over, step_over))
        dual = _way((zx, turn_x * free), (zu, turn_u), (zv, turn_v), (np.where(level > 0, zl, 1.0), turn_l))
        if worth > 0:
            primal = dual = min(primal, dual)
        x, time, room = x + primal * step, time + primal * step_time, room + primal * step_room
        t, over = t + primal * step_t, over + primal * step_over
        zx, zu, zv, zl = zx + dual * turn_x * free, zu + dual * turn_u, zv + dual * turn_v, zl + dual * turn_l
        if not np.isfinite(t):
            raise NoAnswer("no central point found")
        off = max(
            _off(zx * x, aim_x, free),
            _off(zu * time, aim_u, count > 0),
            _off(zv * room, aim_v, kinds),
            _off(zl * over, aim_level, level > 0),
        )
        if off < (_CENTRED if now > mu else _CENTRED_AT_LAST):
            if now <= mu:
                break
            now = max(0.1 * now, mu)
    if np.abs(short).max(initial=0.0) > 1e-6:
        raise NoAnswer("floors that cannot be kept together")
    return Centre(np.where(free, x, 0.0), t, np.where(kinds, zv, 0.0) / np.where(kinds, capacity, 1.0))


def _direction(
    free: Bools,
    c: Floats,
    use: Floats,
    pull: Floats,
    dx: Floats,
    du: Floats,
    dv: Floats,
    dl: Floats,
    speed: Floats,
    pull_t: float,
    with_t: bool,
) -> tuple[Floats, Floats]:
    """Newton's step in x, and what joins the rows: the change of each type's use times dv, and the step in t.

    Rows are small systems of their own, solved once for every unknown that joins them; those are found at the end.
    """
    rows, types = c.shape
    diagonal = np.arange(types)
    both = free[:, :, None] & free[:, None, :]
    block = du[:, None, None] * both + dl[:, None, None] * (c[:, :, None] * c[:, None, :])
    block[:, diagonal, diagonal] += np.where(free, dx, 1.0)
    sides = np.zeros((rows, types, types + 2))
    sides[:, :, 0] = pull
    sides[:, diagonal, 1 + diagonal] = -use
    sides[:, :, types + 1] = c * (dl * speed)[:, None]
    solved = np.linalg.solve(block, sides)
    joint = np.empty((types + 1, types + 2))
    joint[:types] = np.einsum("ik,ikj->kj", use, solved)
    joint[types] = np.einsum("i,ik,ikj->j", speed * dl, c, solved)
    matrix, right = -joint[:, 1:], joint[:, 0].copy()
    matrix[diagonal, diagonal] += 1.0 / dv
    matrix[types, types] += (speed**2 * dl).sum()
    right[types] += pull_t
    if not with_t:
        matrix[types], matrix[:, types] = 0.0, 0.0
        matrix[types, types], right[types] = 1.0, 0.0
    common = np.linalg.solve(matrix, right)
    return (solved[:, :, 0] + solved[:, :, 1:] @ common) * free, common


def _way(*walls: tuple[Floats, Floats]) -> float:
    """How far these steps may go, at most 1."""
    way = 1.0
    for value, step in walls:
        near = float((-step / value).max(initial=0.0))
        if near > 0:
            way = min(way, _WAY / near)
    return way


def _off(product: Floats, aim: Floats | float, part: Bools) -> float:
    """How far products are from their aim, relative to it."""
    return float(np.abs(np.where(part, product / aim - 1.0, 0.0)).max(initial=0.0))
