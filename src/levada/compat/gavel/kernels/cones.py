"""Algebra of the cones of `kernels.selfdual`, by row; see `solver.symmetric`.

The numbers of a row are in half-lines; if there are *cones*, the last three of each row are in a Lorentz cone instead.
"""

from __future__ import annotations

import math

import numpy as np

from levada.core.types import Floats
from levada.kernels.registry import kernel

#: Lower bound of a squared size: rounding may put a point just outside its cone.
_MIN_SQUARE = 1e-300


@kernel
def unit(shape: tuple[int, int], cones: bool) -> Floats:
    """The unit of the algebra."""
    one = np.ones(shape)
    if cones:
        one[:, -2:] = 0.0
    return one


@kernel
def depth(v: Floats) -> float:
    """Distance of a point from the boundary of its cone; below 0 outside."""
    return float(v[0] - math.sqrt(v[1] * v[1] + v[2] * v[2]))


@kernel
def _square(v: Floats) -> float:
    """v0^2 - v1^2 - v2^2, at least `_MIN_SQUARE`."""
    length = math.sqrt(v[1] * v[1] + v[2] * v[2])
    return float(max((v[0] - length) * (v[0] + length), _MIN_SQUARE))


@kernel
def scaling(
    s: Floats, z: Floats, cones: bool, regularization: float
) -> tuple[bool, Floats, Floats, Floats, Floats, Floats]:
    """The Nesterov-Todd scaling W, for which W z = W^-1 s = lam.

    Returns whether all points are inside their cones; W of half-lines; rotation and stretch of each cone; lam;
    1 / (W^2 + regularization) of half-lines; and W^2 + regularization of each cone as a matrix, with the sign of the
    last component as in ECOS.
    """
    rows, wide = len(s) if cones else 0, s.shape[1] - (3 if cones else 0)
    ratio = s[:, :wide] / z[:, :wide]
    lam, rotation, block = np.zeros(s.shape), np.zeros((rows, 4)), np.zeros((rows, 3, 3))
    lam[:, :wide] = np.sqrt(s[:, :wide] * z[:, :wide])
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
        rotation[i, 0] = (a[0] / size_a + b[0] / size_b) / root
        rotation[i, 1] = (a[1] / size_a - b[1] / size_b) / root
        rotation[i, 2] = (a[2] / size_a - b[2] / size_b) / root
        rotation[i, 3] = math.sqrt(size_a / size_b)
        stretch = size_a / size_b
        for p in range(3):
            for r in range(3):
                block[i, p, r] = stretch * 2.0 * rotation[i, p] * rotation[i, r]
        block[i, 0, 0] += regularization - stretch
        block[i, 1, 1] += regularization + stretch
        block[i, 2, 2] += stretch - regularization
        _apply_rotation(rotation[i], b, 1.0, lam[i, wide:])
        inside &= depth(lam[i, wide:]) > 0.0
    return inside, np.sqrt(ratio), rotation, lam, 1.0 / (ratio + regularization), block


@kernel
def _apply_rotation(rotation: Floats, v: Floats, factor: float, to: Floats) -> None:
    along = rotation[1] * v[1] + rotation[2] * v[2]
    stretch, rest = factor * rotation[3], v[0] + along / (1.0 + rotation[0])
    to[0] = stretch * (rotation[0] * v[0] + along)
    to[1] = stretch * (v[1] + rotation[1] * rest)
    to[2] = stretch * (v[2] + rotation[2] * rest)


@kernel
def scaled(scale: Floats, rotation: Floats, v: Floats, factor: float = 1.0) -> Floats:
    """W v; for cones times *factor*."""
    result, wide = np.empty(v.shape), scale.shape[1]
    result[:, :wide] = scale * v[:, :wide]
    for i in range(len(rotation)):
        _apply_rotation(rotation[i], v[i, wide:], factor, result[i, wide:])
    return result


@kernel
def product(a: Floats, b: Floats, cones: bool) -> Floats:
    """a o b."""
    result = a * b
    if cones:
        for i in range(len(a)):
            u, v = a[i, -3:], b[i, -3:]
            result[i, -3] = u[0] * v[0] + u[1] * v[1] + u[2] * v[2]
            result[i, -2] = u[0] * v[1] + v[0] * u[1]
            result[i, -1] = u[0] * v[2] + v[0] * u[2]
    return result


@kernel
def quotient(a: Floats, b: Floats, cones: bool) -> Floats:
    """The x with x o b = a."""
    if not cones:
        return a / b
    result, wide = np.empty(a.shape), a.shape[1] - 3
    result[:, :wide] = a[:, :wide] / b[:, :wide]
    for i in range(len(a)):
        u, v = a[i, wide:], b[i, wide:]
        first = (v[0] * u[0] - v[1] * u[1] - v[2] * u[2]) / _square(v)
        result[i, wide] = first
        result[i, wide + 1] = (u[1] - first * v[1]) / v[0]
        result[i, wide + 2] = (u[2] - first * v[2]) / v[0]
    return result


@kernel
def inverse_step(lam: Floats, step: Floats) -> float:
    """1 / the step length from *lam* to the boundary of the cone; 0 or less if unbounded."""
    size = math.sqrt(_square(lam))
    first, second, third = lam[0] / size, lam[1] / size, lam[2] / size
    across = first * step[0] - second * step[1] - third * step[2]
    factor = (across + step[0]) / (first + 1.0)
    a, b = step[1] - factor * second, step[2] - factor * third
    return float((math.sqrt(a * a + b * b) - across) / size)
