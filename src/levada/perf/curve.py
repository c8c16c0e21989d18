"""Rate as a function of size: isotonic regression of observed rates.

Between and beyond observed sizes, rates are interpolated and extrapolated. The points of a curve are the observed
sizes; their rates are the weighted isotonic regression of the observed rates, so more workers are never slower.
`Curves` has many curves in flat arrays and evaluates all at once; `fit` creates one. With observed sizes m1 < ... < M
and fitted rates r(m1) <= ... <= r(M):

- **below m1** the rate is proportional: r(n) = r(m1) n / m1. So speed-up(1) = 1 even if size 1 was not observed.
- **between** two observed sizes a < n < b it is linear, but at most proportional to the left point:
  r(n) = min(r(a) + (r(b) - r(a)) (n - a) / (b - a), r(a) n / a). The second term only matters if the points rise faster
  than proportionally; then the curve jumps at b, which was observed.
- **beyond M** it is pessimistic. Let g be the last marginal gain: the gain per worker from the second largest observed
  size (the origin, if only M was observed) to M, or r(M) / M if that is less. Up to 2M each worker adds g/2, up to 4M
  g/4, and so on: the gain halves with each doubling of the size. So each doubling adds g M / 2, growth remains
  attractive, and the curve is never above r(M) n / M. With one observed size each doubling adds r(M)/2, at most half of
  the proportional gain.

Confidence is in [0, 1]. With w the effective weight of the observations at a size and k the weight of confidence 1/2:
w / (w + k) at an observed size; half of the smaller neighbor between two (half of the only neighbor below m1); half of
that of M times M / n for n beyond M; 0 without observations.
"""

from collections.abc import Iterable, Sequence
from math import isfinite

import numpy as np

from levada.perf.model import Floats, Ints

#: Bits of the size in a sort key of curve and size.
_SIZE_BITS = 31
_LARGEST_SIZE = (1 << _SIZE_BITS) - 1


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to *values* in weighted squares. O(n): pool adjacent violators."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length; means are strictly increasing
    for value, weight in zip(values, weights, strict=True):
        mean, mass, length = value, weight, 1
        while blocks and blocks[-1][0] >= mean:
            left_mean, left_mass, left_length = blocks.pop()
            mean += (left_mean - mean) * (left_mass / (left_mass + mass))
            mass += left_mass
            length += left_length
        blocks.append((mean, mass, length))
    return [mean for mean, _, length in blocks for _ in range(length)]


class Curves:
    """Many curves in flat arrays, evaluated for arrays of (curve, size).

    Curve 0 always exists: one step per second and worker, confidence 0, for unknown workloads. The others have numbers
    from 1, in the given order. O(log n) per element.
    """

    __slots__ = (
        "_confidence",
        "_keys",
        "_last",
        "_lengths",
        "_origins",
        "_rates",
        "_sizes",
        "_slopes",
        "_steps",
        "_tails",
    )

    def __init__(self, sizes: Ints, rates: Floats, lengths: Ints, confidences: Floats | None = None) -> None:
        """Curves that are linear from the origin through their points, constant beyond the last.

        The first `lengths[0]` points belong to curve 1, and so on; sizes ascend within a curve. Lengths are >= 1.
        """
        origins = np.cumsum(lengths + 1) - lengths  # the origin of each curve, after the one point of curve 0
        points = np.ones(sizes.size + origins.size + 1, np.bool_)
        points[0] = False
        points[origins] = False
        self._sizes = np.zeros(points.size, np.int64)
        self._rates = np.zeros(points.size)
        self._confidence = np.zeros(points.size)
        self._sizes[points] = sizes
        self._rates[points] = rates
        if confidences is not None:
            self._confidence[points] = confidences
        curve = np.cumsum(~points) - 1
        self._origins = np.flatnonzero(~points)
        self._lengths = np.append(0, lengths)
        longest = int(lengths.max(initial=0))
        self._steps = [1 << bit for bit in reversed(range(longest.bit_length()))]
        beyond_all = np.full(2 * longest + 1, np.iinfo(np.int64).max)  # a search may read beyond the last curve
        self._keys = np.concatenate([(curve << _SIZE_BITS) + self._sizes, beyond_all])
        self._last = np.append(curve[1:] != curve[:-1], True)
        # A slope belongs to the point on its left; a tail (steps/s per doubling) to the last point.
        run = np.append(np.diff(self._sizes), 1)
        self._slopes = np.where(self._last, 0.0, np.append(np.diff(self._rates), 0.0) / np.where(self._last, 1, run))
        self._slopes[0] = 1.0
        self._tails = np.zeros(points.size)

    @classmethod
    def fitted(cls, sizes: Ints, rates: Floats, weights: Floats, lengths: Ints, even_weight: float) -> "Curves":
        """Curves through observed points with non-decreasing rates, by the rules above.

        *weights* are the weights of the observations, *even_weight* is the k of the confidence.
        """
        self = cls(sizes, rates, lengths, weights / (weights + even_weight))
        proportion = self._rates / np.maximum(self._sizes, 1)
        proportion[self._sizes == 0] = np.inf
        ends = np.flatnonzero(self._last)[1:]
        self._tails[ends] = np.minimum(self._slopes[ends - 1], proportion[ends]) * self._sizes[ends] / 2
        self._slopes = np.minimum(self._slopes, proportion)
        return self

    def rates(self, curves: Ints, sizes: Ints) -> Floats:
        """Steps per second of each curve at each size; 0 at size 0."""
        shape, sizes, left = self._locate(curves, sizes)
        start, tails = self._sizes[left], self._tails[left]
        result: Floats = self._rates[left] + self._slopes[left] * (sizes - start)
        beyond = np.flatnonzero((sizes > start) & (tails > 0))
        # n/M = mantissa 2^exponent with the mantissa in [1/2, 1): full doublings, and the fraction of the next.
        mantissa, exponent = np.frexp(sizes[beyond] / start[beyond])
        result[beyond] += tails[beyond] * (exponent - 1 + (2 * mantissa - 1))
        return result.reshape(shape)

    def confidence(self, curves: Ints, sizes: Ints) -> Floats:
        """Confidence of each curve at each size, in [0, 1]; 0 at size 0."""
        shape, sizes, left = self._locate(curves, sizes)
        start = self._sizes[left]
        here = self._confidence[left]
        right = self._confidence[np.minimum(left + 1, self._confidence.size - 1)]
        between = np.where(start == 0, right, np.minimum(here, right)) / 2
        beyond = here / 2 * (start / np.maximum(sizes, 1))
        result = np.where(sizes == start, here, np.where(self._last[left], beyond, between))
        return result.reshape(shape)

    def _locate(self, curves: Ints, sizes: Ints) -> tuple[tuple[int, ...], Ints, Ints]:
        """The common shape, the flattened sizes, and for each the last point at or below it.

        It always exists, since every curve has its origin.
        """
        sizes = np.clip(np.asarray(sizes, np.int64), 0, _LARGEST_SIZE)
        curves = np.asarray(curves, np.int64)
        shape = np.broadcast_shapes(curves.shape, sizes.shape)
        keys = ((curves << _SIZE_BITS) + sizes).ravel()
        # Sizes are distinct, so the n-th point has size n or more; without gaps, n.
        left = (self._origins[curves] + np.minimum(sizes, self._lengths[curves])).ravel()
        rest = np.flatnonzero(self._keys[left] > keys)
        if rest.size:
            # Binary search of all other elements at once, by decreasing powers of two.
            wanted, position = keys[rest], np.broadcast_to(self._origins[curves], shape).ravel()[rest]
            for step in self._steps:
                position += step * (self._keys[position + step] <= wanted)
            left[rest] = position
        return shape, np.broadcast_to(sizes, shape).ravel(), left


def fit(workers: Iterable[int], rates: Iterable[float], weights: Iterable[float], even_weight: float) -> Curves:
    """Fit a curve through observed points, in any order, as curve 1; only curve 0 if there are none.

    Points of the same size are averaged by weight. Points whose size, rate or weight is not positive and finite are
    ignored. O(n log n).
    """
    points = sorted(
        (size, rate, weight)
        for size, rate, weight in zip(workers, rates, weights, strict=True)
        if 1 <= size <= _LARGEST_SIZE and rate > 0 and isfinite(rate) and weight > 0 and isfinite(weight)
    )
    sizes: list[int] = []
    means: list[float] = []
    masses: list[float] = []
    for size, rate, weight in points:
        if sizes and sizes[-1] == size:
            masses[-1] += weight
            means[-1] += (rate - means[-1]) * (weight / masses[-1])
        else:
            sizes.append(size)
            means.append(rate)
            masses.append(weight)
    return Curves.fitted(
        np.array(sizes, np.int64),
        np.array(isotonic(means, masses), np.float64),
        np.array(masses, np.float64),
        np.array([len(sizes)] if sizes else [], np.int64),
        even_weight,
    )
