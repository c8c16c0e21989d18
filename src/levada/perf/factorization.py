"""Matrix completion by low-rank factorization."""

import numpy as np

from levada.perf.model import Floats

#: Probabilistic matrix factorization as in Gavel's estimator: rank, ridge, iterations, and the change at which to stop.
RANK = 10
RIDGE = 1e-2
ROUNDS = 100
TOLERANCE = 1e-3


def complete(matrix: Floats, rng: np.random.Generator, *, rank: int = RANK, ridge: float = RIDGE) -> Floats:
    """Fill missing values (NaN) of *matrix*; known values are unchanged.

    Minimizes the squares of known - U V^T plus ridge (|U|^2 + |V|^2) by alternating least squares. A row or column
    without known values becomes 0. The start is random: the result depends on the state of *rng*.
    """
    known = ~np.isnan(matrix)
    if known.all() or not known.any():
        return np.where(known, matrix, 0.0)
    values, mask = np.where(known, matrix, 0.0), known.astype(np.float64)
    columns = rng.standard_normal((matrix.shape[1], rank))
    filled = np.zeros(matrix.shape)
    for _ in range(ROUNDS):
        rows = _solved(values, mask, columns, ridge)
        columns = _solved(values.T, mask.T, rows, ridge)
        before, filled = filled, rows @ columns.T
        if np.sqrt(np.mean((filled - before) ** 2)) < TOLERANCE:
            break
    return np.where(known, matrix, filled)


def _solved(values: Floats, mask: Floats, other: Floats, ridge: float) -> Floats:
    """Optimal factors of all rows for given factors of the columns."""
    squares = np.einsum("jk,jl->jkl", other, other).reshape(len(other), -1)
    normal = (mask @ squares).reshape(len(values), *[other.shape[1]] * 2) + ridge * np.eye(other.shape[1])
    return np.linalg.solve(normal, (values @ other)[..., None])[..., 0]


def complete_sums(matrix: Floats, rng: np.random.Generator, *, ridge: float) -> Floats:
    """Like `complete`, for values that are mostly a row effect plus a column effect.

    Both effects are fitted first, then factors fit the residual. A missing value whose row or column has no known value
    remains missing.
    """
    known = ~np.isnan(matrix)
    values = np.where(known, matrix, 0.0)
    in_row, in_column = known.sum(axis=1), known.sum(axis=0)
    row, column = np.zeros(len(matrix)), np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        row = np.where(known, values - column, 0.0).sum(axis=1) / np.maximum(in_row, 1)
        column = np.where(known, values - row[:, None], 0.0).sum(axis=0) / np.maximum(in_column, 1)
    base = row[:, None] + column
    filled = base + complete(matrix - base, rng, ridge=ridge)
    possible = (in_row > 0)[:, None] & (in_column > 0)
    return np.where(known, matrix, np.where(possible, filled, np.nan))
