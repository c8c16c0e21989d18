"""Wrapper of HiGHS: linear programs as arrays, one thread, warm starts.

It uses the primal simplex method and prints nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from levada.core.types import Bools, Floats, Ints


class NoSolution(Exception):
    """A solver ended without an optimum; the text has the cause."""


class Basis(msgspec.Struct, frozen=True):
    """The basic columns and rows, kept from one solve to the next.

    Columns and rows have one bound or two equal ones, so nonbasic ones are at that bound.
    """

    columns: Bools
    rows: Bools

    def extended(self, columns: int, rows: int) -> Basis | None:
        """This basis for a program with more columns and rows at its end; None if it has fewer."""
        more_columns, more_rows = columns - len(self.columns), rows - len(self.rows)
        if more_columns < 0 or more_rows < 0:
            return None
        return Basis(
            np.concatenate([self.columns, np.zeros(more_columns, np.bool_)]),
            np.concatenate([self.rows, np.ones(more_rows, np.bool_)]),
        )


class Lp(msgspec.Struct, frozen=True, kw_only=True):
    """Maximize cost . x, with bounds on the columns x and on the rows A x; A by columns (CSC)."""

    cost: Floats
    lower: Floats
    upper: Floats
    row_lower: Floats
    row_upper: Floats
    start: Ints  #: (columns + 1,)
    index: Ints
    value: Floats


class LpSolution(msgspec.Struct, frozen=True):
    """An optimum: columns, objective value, duals and reduced costs."""

    x: Floats
    value: float
    dual: Floats  #: (rows,): >= 0 if an upper bound binds, <= 0 if a lower bound binds
    reduced: Floats  #: (columns,): reduced costs; below 0 = at the lower bound


class LpModel:
    """A linear program in HiGHS that can be changed and solved again."""

    def __init__(self, lp: Lp, basis: Basis | None = None) -> None:
        import highspy

        self._names = highspy
        self._highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # HiGHS has no types
        for option, value in _OPTIONS:
            self._highs.setOptionValue(option, value)
        self._status = highspy.HighsBasisStatus.kNonbasic, highspy.HighsBasisStatus.kBasic
        self._conclusive = highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible
        columns, rows = len(lp.cost), len(lp.row_lower)
        status = self._highs.passModel(
            columns,
            rows,
            len(lp.value),
            1,  # by columns
            -1,  # maximize
            0.0,
            lp.cost,
            lp.lower,
            lp.upper,
            lp.row_lower,
            lp.row_upper,
            lp.start.astype(np.int32),
            lp.index.astype(np.int32),
            lp.value,
            np.zeros(columns, np.int32),  # all continuous
        )
        if status == highspy.HighsStatus.kError:
            raise NoSolution("HiGHS rejected the linear program")
        if basis is not None:
            self.set_basis(basis)

    def set_basis(self, basis: Basis) -> None:
        """Start the next solve from this basis, if it fits."""
        fitting = basis.extended(self._highs.getNumCol(), self._highs.getNumRow())
        if fitting is None:
            return
        highs_basis = self._names.HighsBasis()
        highs_basis.col_status = [self._status[basic] for basic in fitting.columns.tolist()]
        highs_basis.row_status = [self._status[basic] for basic in fitting.rows.tolist()]
        highs_basis.valid = True
        # If HiGHS rejects the basis, solving takes longer.
        self._highs.setBasis(highs_basis)

    def set_coefficient(self, row: int, column: int, value: float) -> None:
        """Set one coefficient."""
        self._highs.changeCoeff(row, column, value)

    def set_row_bounds(self, rows: Ints, lower: Floats, upper: Floats) -> None:
        """Set the bounds of these rows."""
        self._highs.changeRowsBounds(len(rows), rows.astype(np.int32), lower, upper)

    def fix_at_zero(self, columns: Ints) -> None:
        """Fix these columns at 0."""
        zeros = np.zeros(len(columns))
        self._highs.changeColsBounds(len(columns), columns.astype(np.int32), zeros, zeros)

    def add_columns(self, cost: Floats, start: Ints, index: Ints, value: Floats) -> None:
        """Append nonnegative columns."""
        count = len(cost)
        zeros, unbounded = np.zeros(count), np.full(count, np.inf)
        starts = start[:count].astype(np.int32)
        self._highs.addCols(count, cost, zeros, unbounded, len(value), starts, index.astype(np.int32), value)

    def solve(self, iteration_limit: int | None = None) -> LpSolution | None:
        """The optimum; None if infeasible. Raises NoSolution if HiGHS finds neither.

        *iteration_limit* is the maximum number of simplex iterations.
        """
        highs, names = self._highs, self._names
        highs.setOptionValue("simplex_iteration_limit", _NO_LIMIT if iteration_limit is None else iteration_limit)
        highs.run()
        status = highs.getModelStatus()
        if status not in self._conclusive and iteration_limit is None:
            status = self._retry()
        if status == names.HighsModelStatus.kInfeasible:
            return None
        if status != names.HighsModelStatus.kOptimal:
            raise NoSolution(f"HiGHS ended with: {highs.modelStatusToString(status)}")
        solution = highs.getSolution()
        return LpSolution(
            np.array(solution.col_value),
            float(highs.getInfo().objective_function_value),
            np.array(solution.row_dual),
            np.array(solution.col_dual),
        )

    def _retry(self) -> Any:
        """Solve from scratch with different options; returns the last status."""
        for option, value in _RETRIES:
            self._highs.clearSolver()
            self._highs.setOptionValue(option, value)
            self._highs.run()
            status = self._highs.getModelStatus()
            if status in self._conclusive:
                break
        for option, value in _OPTIONS:
            self._highs.setOptionValue(option, value)
        return status

    def basis(self) -> Basis:
        """The basis of the last solution."""
        # HiGHS has a faster call, which crashes if it solved the program without factorizing.
        basis, basic = self._highs.getBasis(), int(self._status[1])
        columns, rows = basis.col_status, basis.row_status
        return Basis(
            np.array([int(status) for status in columns], np.int8) == basic,
            np.array([int(status) for status in rows], np.int8) == basic,
        )


#: Measured: primal simplex without presolve from the last basis is the fastest between rounds.
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("output_flag", False),
    ("solver", "simplex"),
    ("presolve", "off"),
    ("simplex_strategy", 4),
    ("threads", 1),
    ("parallel", "off"),
    ("primal_feasibility_tolerance", 1e-9),
    ("dual_feasibility_tolerance", 1e-9),
)
_NO_LIMIT = 2**31 - 1
#: Options that are changed, one after the other, until a solve is conclusive.
_RETRIES: tuple[tuple[str, Any], ...] = (("simplex_strategy", 4), ("simplex_strategy", 1), ("presolve", "choose"))
