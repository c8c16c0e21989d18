"""Matrix completion: missing cells are filled, known cells stay."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from levada.perf.factorization import complete, complete_sums


def holes(matrix, share, seed):
    """*matrix* with about this share of its cells missing."""
    return np.where(np.random.default_rng(seed).random(matrix.shape) < share, np.nan, matrix)


def low_rank(seed, rank=2, shape=(20, 15)):
    source = np.random.default_rng(seed)
    return source.uniform(0.2, 1, (shape[0], rank)) @ source.uniform(0.2, 1, (rank, shape[1]))


@given(st.integers(0, 1000), st.floats(0.0, 1.0), st.integers(0, 5))
def test_known_cells_stay_and_missing_ones_become_finite(seed, share, start):
    matrix = holes(np.random.default_rng(seed).standard_normal((6, 5)), share, seed)
    filled = complete(matrix, np.random.default_rng(start))
    known = ~np.isnan(matrix)
    assert (filled[known] == matrix[known]).all()
    assert np.isfinite(filled).all()
    assert (filled == complete(matrix, np.random.default_rng(start))).all()


def test_a_matrix_of_rank_two_is_recovered():
    """On average: alternating least squares may end in a local minimum."""
    errors, naive = [], []
    for seed in range(20):
        matrix = low_rank(seed)
        gaps = holes(matrix, 0.25, seed + 1)
        hole = np.isnan(gaps)
        errors.append(np.abs(complete(gaps, np.random.default_rng(seed), rank=2) - matrix)[hole].mean())
        naive.append(np.abs(np.nanmean(gaps) - matrix)[hole].mean())
    assert np.mean(errors) < 0.2 * np.mean(naive)


@given(st.integers(0, 50))
def test_a_sum_of_row_and_column_terms_is_recovered(seed):
    source = np.random.default_rng(seed)
    matrix = source.normal(0, 3, (8, 1)) + source.normal(0, 3, 6)
    gaps = matrix.copy()
    gaps[np.arange(1, 8), source.integers(1, 6, 7)] = np.nan  # the first row and column stay whole
    np.testing.assert_allclose(complete_sums(gaps, source, ridge=0.1), matrix, atol=1e-6)


def test_a_row_or_column_without_values_stays_missing():
    matrix = np.array([[1.0, np.nan, 2.0], [np.nan, np.nan, np.nan], [3.0, np.nan, np.nan]])
    filled = complete_sums(matrix, np.random.default_rng(0), ridge=0.1)
    assert np.isnan(filled).tolist() == [[False, True, False], [True, True, True], [False, True, False]]
