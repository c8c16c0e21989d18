"""Properties of a fitted speed-up curve."""

from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given
from scipy.optimize import isotonic_regression

from levada.perf import Curves, fit, isotonic
from tests.perf.builders import ints

K = 100.0
RATES = st.floats(1e-6, 1e6)
WEIGHTS = st.floats(1e-3, 1e5)
POINTS = st.lists(st.tuples(st.integers(1, 300), RATES, WEIGHTS), min_size=1, max_size=12)
SIZES = np.arange(0, 1300)
ONE = np.array(1)
close = pytest.approx


def curve(*points):
    return fit(*zip(*points, strict=True), K) if points else fit((), (), (), K)


def rates(points, sizes=SIZES):
    return curve(*points).rates(ONE, sizes)


def observed(points):
    return sorted({size for size, _, _ in points})


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), WEIGHTS), max_size=30))
def test_isotonic_regression_is_the_nearest_monotone_sequence(points):
    values, weights = [value for value, _ in points], [weight for _, weight in points]
    expected = isotonic_regression(values, weights=weights).x if points else []
    assert isotonic(values, weights) == close(list(expected), rel=1e-9, abs=1e-6)


@given(POINTS)
def test_rates_are_positive_finite_and_monotone(points):
    values = rates(points)
    assert (np.diff(values) >= 0).all()
    assert (values[1:] > 0).all()
    assert np.isfinite(values).all()


@given(POINTS)
def test_monotone_observations_are_fitted_exactly(points):
    sizes = observed(points)
    means = sorted(rate for _, rate, _ in points)[: len(sizes)]
    fitted = curve(*((size, mean, 1.0) for size, mean in zip(sizes, means, strict=True)))
    assert fitted.rates(ONE, np.array(sizes)).tolist() == means


@given(POINTS)
def test_below_the_smallest_observed_size_speed_is_proportional(points):
    smallest = observed(points)[0]
    values = rates(points)
    assert values[: smallest + 1] == close(values[smallest] * SIZES[: smallest + 1] / smallest)


@given(POINTS)
@example([(1, 1.0, 1.0), (2, 1.0, 1.0), (4, 8.0, 1.0)])
def test_an_unobserved_size_is_at_most_proportional_to_the_observed_one_below(points):
    sizes, values = np.array(observed(points)), rates(points)
    for size in set(range(sizes[0], SIZES.size)) - set(sizes.tolist()):
        left = sizes[sizes < size][-1]
        assert values[size] <= values[left] / left * size * (1 + 1e-12)


@given(POINTS)
def test_beyond_the_data_the_gain_halves_with_each_doubling(points):
    sizes = [0, *observed(points)]
    largest = sizes[-1]
    asked = np.array([sizes[-2], largest, *(largest * 2**k for k in (1, 2, 3)), largest * 8 + largest])
    values = rates(points, asked)
    gains = np.diff(values) / np.diff(asked)
    marginal = min(gains[0], values[1] / largest)
    tolerance = 1e-9 * values[1]
    assert gains[1] == close(marginal / 2, rel=1e-6, abs=tolerance)
    assert gains[2] == close(marginal / 4, rel=1e-6, abs=tolerance)
    assert gains[3] == close(marginal / 8, rel=1e-6, abs=tolerance)
    assert gains[4] == close(marginal / 16, rel=1e-6, abs=tolerance)


def test_with_one_observed_size_each_doubling_adds_half_of_its_rate():
    assert rates([(4, 10.0, 1.0)], ints(1, 2, 4, 6, 8, 16, 32)).tolist() == [2.5, 5.0, 10.0, 12.5, 15.0, 20.0, 25.0]


def test_a_plateau_is_extrapolated_as_flat():
    assert rates([(4, 10.0, 1.0), (8, 10.0, 1.0)], ints(8, 9, 64)).tolist() == [10.0, 10.0, 10.0]


def test_superlinear_points_are_used_only_at_their_size():
    assert rates([(2, 1.0, 1.0), (6, 9.0, 1.0)], ints(3, 5, 6)).tolist() == [1.5, 2.5, 9.0]
    # The last gain was 2 per worker, limited to the proportional 9/6; half of it is extrapolated.
    assert rates([(2, 1.0, 1.0), (6, 9.0, 1.0)], ints(8)).tolist() == [9.0 + 2 * 0.75]


def test_between_two_sizes_speed_is_linear():
    assert rates([(2, 2.0, 1.0), (6, 4.0, 1.0)], ints(3, 4, 5)).tolist() == [2.5, 3.0, 3.5]


def test_contradicting_points_are_averaged_by_weight():
    low, high = rates([(1, 10.0, 99.0), (2, 8.0, 1.0)], ints(1, 2))
    assert low == high == close(9.98)


@given(POINTS, st.randoms())
def test_the_order_of_the_points_does_not_matter(points, random):
    shuffled = points.copy()
    random.shuffle(shuffled)
    assert rates(shuffled).tolist() == rates(points).tolist()
    assert curve(*shuffled).confidence(ONE, SIZES).tolist() == curve(*points).confidence(ONE, SIZES).tolist()


@given(POINTS)
def test_invalid_points_are_ignored(points):
    nan, inf = float("nan"), float("inf")
    invalid = [(0, 5.0, 1.0), (-3, 5.0, 1.0), (3, nan, 1.0), (3, inf, 1.0), (3, 0.0, 1.0), (3, -1.0, 1.0)]
    invalid += [(3, 1.0, 0.0), (3, 1.0, nan), (3, 1.0, inf), (3, 1.0, -1.0)]
    assert rates([*invalid, *points]).tolist() == rates(points).tolist()


def test_points_of_one_size_are_averaged_by_weight():
    assert rates([(2, 1.0, 1.0), (2, 4.0, 2.0)], ints(2))[0] == close(3.0)


@given(POINTS)
def test_confidence_follows_weights_and_distance(points):
    sizes = observed(points)
    confidence = curve(*points).confidence(ONE, SIZES)
    assert ((confidence >= 0) & (confidence <= 1)).all()
    assert confidence[0] == 0
    for size in sizes:
        weight = sum(w for s, _, w in points if s == size)
        assert confidence[size] == close(weight / (weight + K))
    for left, right in pairwise(sizes):
        assert (confidence[left + 1 : right] == min(confidence[left], confidence[right]) / 2).all()
    assert (confidence[1 : sizes[0]] == confidence[sizes[0]] / 2).all()
    beyond = SIZES[sizes[-1] + 1 :]
    assert confidence[beyond] == close(confidence[sizes[-1]] / 2 * sizes[-1] / beyond)


@given(POINTS, st.integers(0, 11), st.floats(1.0, 1e4))
def test_more_data_never_lowers_confidence_at_any_size(points, index, more):
    size, rate, _ = points[index % len(points)]
    grown = [*points, (size, rate, more)]
    assert (curve(*grown).confidence(ONE, SIZES) >= curve(*points).confidence(ONE, SIZES)).all()
    assert curve(*grown).confidence(ONE, ints(size))[0] > curve(*points).confidence(ONE, ints(size))[0]


def test_without_observations_the_curve_is_linear():
    empty = curve()
    assert empty.rates(np.array(0), ints(-1, 0, 1, 7)).tolist() == [0, 0, 1, 7]
    assert empty.confidence(np.array(0), ints(0, 1, 7)).tolist() == [0, 0, 0]


@given(st.lists(st.dictionaries(st.integers(1, 40), RATES, min_size=1, max_size=8), max_size=6))
def test_curves_evaluated_together_equal_single_ones(tables):
    ordered = [dict(sorted(table.items())) for table in tables]
    sizes = np.array([size for table in ordered for size in table], np.int64)
    values = np.array([rate for table in ordered for rate in table.values()], np.float64)
    together = Curves(sizes, values, np.array([len(table) for table in ordered], np.int64))
    asked = np.arange(50)
    answer = together.rates(np.arange(len(tables) + 1)[:, None], asked)
    assert answer.shape == (len(tables) + 1, 50)
    assert answer[0].tolist() == asked.tolist()
    for row, table in zip(answer[1:], ordered, strict=True):
        expected = np.interp(asked, [0, *table], [0.0, *table.values()])
        assert row == close(expected, rel=1e-9)
