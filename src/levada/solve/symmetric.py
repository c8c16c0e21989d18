"""Vectors over the constraints of a program, and the algebra of the cones in which they lie; see `selfdual`.

Most lie on a half-line, s >= 0, and some three by three in a Lorentz cone, s0 >= |(s1, s2)|. On half-lines all is by
element; in cones (u0, u) o (v0, v) = (u0 v0 + u v, u0 v + v0 u), of which (1, 0, 0) is the unit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from levada.core.types import Floats
from levada.solve.highs import NoAnswer

_NO_CONES = np.zeros((3, 0))


class Rows(NamedTuple):
    """A number per constraint: x >= 0 (as x is), capacities (types), time (rows), levels (sets, rows); and cones."""

    x: Floats
    cap: Floats
    time: Floats
    level: Floats
    cone: Floats = _NO_CONES  #: (3, rows)

    @staticmethod
    def of(linear: Iterable[Floats], cone: Floats) -> Rows:
        """From the four linear parts, and cones."""
        x, cap, time, level = linear
        return Rows(x, cap, time, level, cone)

    # Written out, because these are called ten thousands of times.

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
        return Rows(*(mine * theirs for mine, theirs in zip(self, other, strict=True)))

    def over(self, other: Rows) -> Rows:
        return Rows(*(mine / theirs for mine, theirs in zip(self, other, strict=True)))

    def root(self) -> Rows:
        return Rows(*(np.sqrt(part) for part in self))


class Scaling:
    """What makes two points inside the cones one: W z = W^-1 s = `ends` (Nesterov and Todd)."""

    def __init__(self, s: Rows, z: Rows) -> None:
        """Raises NoAnswer where one of them has left its cone, or `ends` are on its wall, whence no step leads."""
        _require_inside(s)
        _require_inside(z)
        self._s, self._z, self._cones = s, z, bool(s.cone.size)
        self._linear = [np.sqrt(a / b) for a, b in zip(s[:4], z[:4], strict=True)]
        size_s, size_z = _size(s.cone), _size(z.cone)
        a, b = s.cone / size_s, z.cone / size_z
        #: W of a cone is a hyperbolic turn, and this much longer.
        self._turn = (a + b * _SIGNS) / np.sqrt(2.0 * (1.0 + (a * b).sum(axis=0)))
        self._longer = np.sqrt(size_s / size_z)
        self.ends = Rows.of((np.sqrt(a * b) for a, b in zip(s[:4], z[:4], strict=True)), self._turned(z.cone))
        _require_inside(self.ends)

    def __call__(self, v: Rows) -> Rows:
        """W v."""
        linear = (a * b for a, b in zip(self._linear, v[:4], strict=True))
        return Rows.of(linear, self._turned(v.cone))

    def _turned(self, v: Floats) -> Floats:
        if not self._cones:
            return v
        first, rest = self._turn[0], self._turn[1:]
        along = (rest * v[1:]).sum(axis=0)
        turned = np.concatenate([(first * v[0] + along)[None], v[1:] + rest * (v[0] + along / (1.0 + first))])
        return np.asarray(self._longer * turned, np.float64)

    def weight(self, regular: float) -> Rows:
        """1 / (W^2 + regular); of cones W^2 + regular, as a matrix of each. See `unweighted`.

        The last number of a cone is held the other way round, as it is in the solver that is repeated here.
        """
        linear = (1.0 / (a / b + regular) for a, b in zip(self._s[:4], self._z[:4], strict=True))
        square = 2.0 * self._turn[:, None] * self._turn[None] - np.diag(_SIGNS[:, 0])[:, :, None]
        return Rows.of(linear, self._longer**2 * square + regular * np.diag([1.0, 1.0, -1.0])[:, :, None])


#: Of (u0, u) what u0^2 - u u takes of each.
_SIGNS = np.array([[1.0], [-1.0], [-1.0]])


def unit(like: Rows) -> Rows:
    """The unit of the algebra, in the shape of *like*."""
    cone = np.zeros_like(like.cone)
    cone[0] = 1.0
    return Rows.of((np.ones_like(part) for part in like[:4]), cone)


def level_weight(like: Rows, regular: float) -> Rows:
    """The weight (see `Scaling.weight`) where s and z are the same."""
    linear = (np.full_like(part, 1.0 / (1.0 + regular)) for part in like[:4])
    return Rows.of(linear, (1.0 + regular) * np.repeat(np.eye(3)[:, :, None], like.cone.shape[1], axis=2))


def unweighted(v: Rows, weight: Rows) -> Rows:
    """v over a weight."""
    linear = (a / b for a, b in zip(v[:4], weight[:4], strict=True))
    return Rows.of(linear, np.einsum("abi,bi->ai", weight.cone, v.cone))


def product(a: Rows, b: Rows) -> Rows:
    """a o b."""
    u, v = a.cone, b.cone
    cone = np.concatenate([(u * v).sum(axis=0)[None], u[0] * v[1:] + v[0] * u[1:]]) if u.size else u
    return Rows.of((mine * theirs for mine, theirs in zip(a[:4], b[:4], strict=True)), cone)


def quotient(a: Rows, b: Rows) -> Rows:
    """What gives a when multiplied with b."""
    u, v = a.cone, b.cone
    if u.size:
        first = (v[0] * u[0] - (v[1:] * u[1:]).sum(axis=0)) / _size(v) ** 2
        u = np.concatenate([first[None], (u[1:] - first * v[1:]) / v[0]])
    return Rows.of((mine / theirs for mine, theirs in zip(a[:4], b[:4], strict=True)), u)


def _require_inside(point: Rows) -> None:
    if point.cone.size and float(depth(point.cone).min()) <= 0:
        raise NoAnswer("outside of a cone")


def depth(cone: Floats) -> Floats:
    """How far a point is inside its cone; below 0 outside."""
    return np.asarray(cone[0] - np.hypot(cone[1], cone[2]), np.float64)


def fall(ends: Floats, step: Floats) -> Floats:
    """One over how far from *ends* a step may go before it comes to the cone's wall; 0 or less if it never does."""
    size = _size(ends)
    bar = ends / size
    across = (bar * _SIGNS * step).sum(axis=0)
    rest = step[1:] - (across + step[0]) / (bar[0] + 1.0) * bar[1:]
    return np.asarray((np.hypot(rest[0], rest[1]) - across) / size, np.float64)


def _size(cone: Floats) -> Floats:
    """The root of u0^2 - u u; next to nothing on the wall, where rounding may have gone a hair too far."""
    length = np.hypot(cone[1], cone[2])
    return np.asarray(np.sqrt(np.maximum((cone[0] - length) * (cone[0] + length), 1e-300)), np.float64)
