"""The algebra of the cones of `kernels.selfdual`, row by row; see `solve.symmetric`.

A row's numbers lie on half-lines, but for the last three of each where there are *cones*: those in a Lorentz cone.
"""

from __future__ import annotations

import math

import numpy as np

from levada.core.types import Floats
from levada.kernels.registry import kernel

#: What the square of a cone's size is at least: rounding may have gone a hair beyond the wall.
_LEAST = 1e-300


@kernel
def unit(shape: tuple[int, int], cones: bool) -> Floats:
    """The unit of the algebra."""
    one = np.ones(shape)
    if cones:
        one[:, -2:] = 0.0
    return one


@kernel
def depth(v: Floats) -> float:
    """How far a point is inside its cone; below 0 outside."""
    return float(v[0] - math.sqrt(v[1] * v[1] + v[2] * v[2]))


@kernel
def _square(v: Floats) -> float:
    """v0^2 - v1^2 - v2^2, but above 0."""
    length = math.sqrt(v[1] * v[1] + v[2] * v[2])
    return float(max((v[0] - length) * (v[0] + length), _LEAST))


@kernel
def scaling(s: Floats, z: Floats, cones: bool, regular: float) -> tuple[bool, Floats, Floats, Floats, Floats, Floats]:
    """W of Nesterov and Todd, for which W z = W^-1 s = ends.

    Returns whether all points are inside their cones; W of half-lines; of each cone its turn and how much longer it
    makes; ends; 1 / (W^2 + regular) of half-lines; and W^2 + regular of each cone as a matrix, where the last number is
    held the other way round, as it is in the solver that is repeated here.
    """
    rows, wide = len(s) if cones else 0, s.shape[1] - (3 if cones else 0)
    ratio = s[:, :wide] / z[:, :wide]
    ends, turn, block = np.zeros(s.shape), np.zeros((rows, 4)), np.zeros((rows, 3, 3))
    ends[:, :wide] = np.sqrt(s[:, :wide] * z[:, :wide])
    inside = True
    for i in range(rows):
        a, b = s[i, wide:], z[i, wide:]
        if not (depth(a) > 0.0 and depth(b) > 0.0):
            inside = False
            break
        size_a, size_b = math.sqrt(_square(a)), math.sqrt(_square(b))
        across = (
            (a[0] / size_a) * (b[0] / size_b) + (a[1] / size_a) * (b[1] / size_b) + (a[2] / size_a) * (b[2] / size_b)
        )
        root = math.sqrt(2.0 * (1.0 + across))
        turn[i, 0] = (a[0] / size_a + b[0] / size_b) / root
        turn[i, 1] = (a[1] / size_a - b[1] / size_b) / root
        turn[i, 2] = (a[2] / size_a - b[2] / size_b) / root
        turn[i, 3] = math.sqrt(size_a / size_b)
        longer = size_a / size_b
        for p in range(3):
            for r in range(3):
                block[i, p, r] = longer * 2.0 * turn[i, p] * turn[i, r]
        block[i, 0, 0] += regular - longer
        block[i, 1, 1] += regular + longer
        block[i, 2, 2] += longer - regular
        _turned(turn[i], b, 1.0, ends[i, wide:])
        inside &= depth(ends[i, wide:]) > 0.0
    return inside, np.sqrt(ratio), turn, ends, 1.0 / (ratio + regular), block


@kernel
def _turned(turn: Floats, v: Floats, factor: float, to: Floats) -> None:
    along = turn[1] * v[1] + turn[2] * v[2]
    longer, rest = factor * turn[3], v[0] + along / (1.0 + turn[0])
    to[0] = longer * (turn[0] * v[0] + along)
    to[1] = longer * (v[1] + turn[1] * rest)
    to[2] = longer * (v[2] + turn[2] * rest)


@kernel
def scaled(scale: Floats, turn: Floats, v: Floats, factor: float = 1.0) -> Floats:
    """W v, of cones *factor* times."""
    found, wide = np.empty(v.shape), scale.shape[1]
    found[:, :wide] = scale * v[:, :wide]
    for i in range(len(turn)):
        _turned(turn[i], v[i, wide:], factor, found[i, wide:])
    return found


@kernel
def product(a: Floats, b: Floats, cones: bool) -> Floats:
    """a o b."""
    found = a * b
    if cones:
        for i in range(len(a)):
            u, v = a[i, -3:], b[i, -3:]
            found[i, -3] = u[0] * v[0] + u[1] * v[1] + u[2] * v[2]
            found[i, -2] = u[0] * v[1] + v[0] * u[1]
            found[i, -1] = u[0] * v[2] + v[0] * u[2]
    return found


@kernel
def quotient(a: Floats, b: Floats, cones: bool) -> Floats:
    """What gives a when multiplied with b."""
    if not cones:
        return a / b
    found, wide = np.empty(a.shape), a.shape[1] - 3
    found[:, :wide] = a[:, :wide] / b[:, :wide]
    for i in range(len(a)):
        u, v = a[i, wide:], b[i, wide:]
        first = (v[0] * u[0] - v[1] * u[1] - v[2] * u[2]) / _square(v)
        found[i, wide] = first
        found[i, wide + 1] = (u[1] - first * v[1]) / v[0]
        found[i, wide + 2] = (u[2] - first * v[2]) / v[0]
    return found


@kernel
def fall(ends: Floats, step: Floats) -> float:
    """One over how far from *ends* a step may go before it comes to the cone's wall; 0 or less if it never does."""
    size = math.sqrt(_square(ends))
    first, second, third = ends[0] / size, ends[1] / size, ends[2] / size
    across = first * step[0] - second * step[1] - third * step[2]
    factor = (across + step[0]) / (first + 1.0)
    a, b = step[1] - factor * second, step[2] - factor * third
    return float((math.sqrt(a * a + b * b) - across) / size)
