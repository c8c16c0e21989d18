"""Matrices with holes, filled by the few factors that explain what is there."""

import numpy as np

from levada.perf.model import Floats

#: Probabilistic matrix factorisation as Gavel's estimator has it: factors, ridge, rounds, and the change to stop at.
RANK = 10
RIDGE = 1e-2
ROUNDS = 100
TOLERANCE = 1e-3


def complete(matrix: Floats, rng: np.random.Generator, *, rank: int = RANK, ridge: float = RIDGE) -> Floats:
    """*matrix* with its holes (NaN) filled; what is known stays as it is, bit for bit.

    Minimises, over rows U and columns V, the squares of known - U V^T plus ridge (|U|^2 + |V|^2), by turns: each is an
    exact solution for one of the two. A row or column of which nothing is known becomes 0. Starts from normal numbers
    out of *rng*: one generator state, one answer.
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
    """The best factors of each row for given ones of the other side, all rows at once."""
    squares = np.einsum("jk,jl->jkl", other, other).reshape(len(other), -1)
    normal = (mask @ squares).reshape(len(values), *[other.shape[1]] * 2) + ridge * np.eye(other.shape[1])
    return np.linalg.solve(normal, (values @ other)[..., None])[..., 0]


def complete_sums(matrix: Floats, rng: np.random.Generator, *, ridge: float) -> Floats:
    """As `complete`, for values that are mostly a sum of what the row and what the column contributes.

    Those two parts are fitted first; factors then explain what is left. A hole in a row or column of which nothing is
    known stays one.
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
