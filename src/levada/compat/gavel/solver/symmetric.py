"""Vectors over constraints, and the algebra of their cones; see `selfdual`.

Most constraints are half-lines, s >= 0; some are triples in a Lorentz cone, s0 >= |(s1, s2)|. Operations are
elementwise on half-lines; on cones (u0, u) o (v0, v) = (u0 v0 + u v, u0 v + v0 u), with the unit (1, 0, 0).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from levada.core.types import Floats
from levada.solve.highs import NoSolution

_NO_CONES = np.zeros((3, 0))


class Rows(NamedTuple):
    """A number per constraint: x >= 0 (shape of x), capacities (types), time (rows), levels (sets, rows); and cones."""

    x: Floats
    cap: Floats
    time: Floats
    level: Floats
    cone: Floats = _NO_CONES  #: (3, rows)

    @staticmethod
    def of(linear: Iterable[Floats], cone: Floats) -> Rows:
        """Create from the four linear parts and the cones."""
        x, cap, time, level = linear
        return Rows(x, cap, time, level, cone)

    # Written out for speed: called more than 10,000 times.

    def times(self, factor: float) -> Rows:
        return Rows(self.x * factor, self.cap * factor, self.time * factor, self.level * factor, self.cone * factor)

    def plus(self, other: Rows, factor: float = 1.0) -> Rows:
        return Rows(
            self.x + factor * other.x,
            self.cap + factor * other.cap,
            self.time + factor * other.time,
            self.level + factor * other.level,
            self.cone + factor * other.cone if self.cone.size else self.cone,
        )

    def by(self, other: Rows) -> Rows:
        return Rows(*(a * b for a, b in zip(self, other, strict=True)))

    def over(self, other: Rows) -> Rows:
        return Rows(*(a / b for a, b in zip(self, other, strict=True)))

    def root(self) -> Rows:
        return Rows(*(np.sqrt(part) for part in self))


class Scaling:
    """Nesterov-Todd scaling W of two interior points: W z = W^-1 s = `lam`."""

    def __init__(self, s: Rows, z: Rows) -> None:
        """Raises NoSolution if one of them or `lam` is not strictly inside its cone."""
        _require_inside(s)
        _require_inside(z)
        self._s, self._z, self._cones = s, z, bool(s.cone.size)
        self._linear = [np.sqrt(a / b) for a, b in zip(s[:4], z[:4], strict=True)]
        size_s, size_z = _size(s.cone), _size(z.cone)
        a, b = s.cone / size_s, z.cone / size_z
        #: W of a cone is a hyperbolic rotation times a factor.
        self._rotation = (a + b * _SIGNS) / np.sqrt(2.0 * (1.0 + (a * b).sum(axis=0)))
        self._stretch = np.sqrt(size_s / size_z)
        self.lam = Rows.of((np.sqrt(a * b) for a, b in zip(s[:4], z[:4], strict=True)), self._apply_rotation(z.cone))
        _require_inside(self.lam)

    def __call__(self, v: Rows) -> Rows:
        """W v."""
        linear = (a * b for a, b in zip(self._linear, v[:4], strict=True))
        return Rows.of(linear, self._apply_rotation(v.cone))

    def _apply_rotation(self, v: Floats) -> Floats:
        if not self._cones:
            return v
        first, rest = self._rotation[0], self._rotation[1:]
        along = (rest * v[1:]).sum(axis=0)
        rotated = np.concatenate([(first * v[0] + along)[None], v[1:] + rest * (v[0] + along / (1.0 + first))])
        return np.asarray(self._stretch * rotated, np.float64)

    def weight(self, regularization: float) -> Rows:
        """1 / (W^2 + regularization); for cones W^2 + regularization as a matrix. See `unweighted`.

        The sign of the last component of a cone is as in ECOS.
        """
        linear = (1.0 / (a / b + regularization) for a, b in zip(self._s[:4], self._z[:4], strict=True))
        square = 2.0 * self._rotation[:, None] * self._rotation[None] - np.diag(_SIGNS[:, 0])[:, :, None]
        return Rows.of(linear, self._stretch**2 * square + regularization * np.diag([1.0, 1.0, -1.0])[:, :, None])


#: Signs of u0^2 - u u.
_SIGNS = np.array([[1.0], [-1.0], [-1.0]])


def unit(like: Rows) -> Rows:
    """The unit of the algebra, in the shape of *like*."""
    cone = np.zeros_like(like.cone)
    cone[0] = 1.0
    return Rows.of((np.ones_like(part) for part in like[:4]), cone)


def level_weight(like: Rows, regularization: float) -> Rows:
    """The weight (see `Scaling.weight`) for s = z."""
    linear = (np.full_like(part, 1.0 / (1.0 + regularization)) for part in like[:4])
    return Rows.of(linear, (1.0 + regularization) * np.repeat(np.eye(3)[:, :, None], like.cone.shape[1], axis=2))


def unweighted(v: Rows, weight: Rows) -> Rows:
    """v divided by a weight."""
    linear = (a / b for a, b in zip(v[:4], weight[:4], strict=True))
    return Rows.of(linear, np.einsum("abi,bi->ai", weight.cone, v.cone))


def product(a: Rows, b: Rows) -> Rows:
    """a o b."""
    u, v = a.cone, b.cone
    cone = np.concatenate([(u * v).sum(axis=0)[None], u[0] * v[1:] + v[0] * u[1:]]) if u.size else u
    return Rows.of((left * right for left, right in zip(a[:4], b[:4], strict=True)), cone)


def quotient(a: Rows, b: Rows) -> Rows:
    """The x with x o b = a."""
    u, v = a.cone, b.cone
    if u.size:
        first = (v[0] * u[0] - (v[1:] * u[1:]).sum(axis=0)) / _size(v) ** 2
        u = np.concatenate([first[None], (u[1:] - first * v[1:]) / v[0]])
    return Rows.of((left / right for left, right in zip(a[:4], b[:4], strict=True)), u)


def _require_inside(point: Rows) -> None:
    if point.cone.size and float(depth(point.cone).min()) <= 0:
        raise NoSolution("a point is not inside its cone")


def depth(cone: Floats) -> Floats:
    """Distance of a point from the boundary of its cone; below 0 outside."""
    return np.asarray(cone[0] - np.hypot(cone[1], cone[2]), np.float64)


def inverse_step(lam: Floats, step: Floats) -> Floats:
    """1 / the step length from *lam* to the boundary of the cone; 0 or less if unbounded."""
    size = _size(lam)
    bar = lam / size
    across = (bar * _SIGNS * step).sum(axis=0)
    rest = step[1:] - (across + step[0]) / (bar[0] + 1.0) * bar[1:]
    return np.asarray((np.hypot(rest[0], rest[1]) - across) / size, np.float64)


def _size(cone: Floats) -> Floats:
    """The square root of u0^2 - u u; bounded below, since rounding may leave a point just outside the cone."""
    length = np.hypot(cone[1], cone[2])
    return np.asarray(np.sqrt(np.maximum((cone[0] - length) * (cone[0] + length), 1e-300)), np.float64)
