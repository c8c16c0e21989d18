"""A thin layer around HiGHS: linear programs as arrays, primal simplex, one thread, warm starts, silence."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from levada.core.types import Bools, Floats, Ints


class NoAnswer(Exception):
    """HiGHS ended without an optimum; the text says how."""


class Basis(msgspec.Struct, frozen=True):
    """Which columns and rows were basic; kept from one solve to the next.

    Programs here have columns and rows with one bound, or with two that are equal: the others stand at theirs.
    """

    columns: Bools
    rows: Bools

    def grown(self, columns: int, rows: int) -> Basis | None:
        """This basis for a program that got more columns and rows at its end; None if it lost some."""
        more_columns, more_rows = columns - len(self.columns), rows - len(self.rows)
        if more_columns < 0 or more_rows < 0:
            return None
        return Basis(
            np.concatenate([self.columns, np.zeros(more_columns, np.bool_)]),
            np.concatenate([self.rows, np.ones(more_rows, np.bool_)]),
        )


class Lp(msgspec.Struct, frozen=True, kw_only=True):
    """Maximise cost . x, with bounds on the columns x and on the rows A x; A by columns (CSC)."""

    cost: Floats
    lower: Floats
    upper: Floats
    row_lower: Floats
    row_upper: Floats
    start: Ints  #: (columns + 1,)
    index: Ints
    value: Floats


class Answer(msgspec.Struct, frozen=True):
    """An optimum: columns, the value of the objective, and what a unit of each row's bound is worth."""

    x: Floats
    value: float
    dual: Floats  #: (rows,): at least 0 where an upper bound binds, at most 0 where a lower one does
    reduced: Floats  #: (columns,): what a unit more of a column adds; below 0 = it stands at its lower bound


class Model:
    """A linear program inside HiGHS, to be solved, changed a little, and solved again."""

    def __init__(self, lp: Lp, basis: Basis | None = None) -> None:
        import highspy

        self._names = highspy
        self._highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # it comes without types
        for option, value in _OPTIONS:
            self._highs.setOptionValue(option, value)
        self._status = highspy.HighsBasisStatus.kNonbasic, highspy.HighsBasisStatus.kBasic
        self._ends = highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kInfeasible
        columns, rows = len(lp.cost), len(lp.row_lower)
        status = self._highs.passModel(
            columns,
            rows,
            len(lp.value),
            1,  # by columns
            -1,  # maximise
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
            raise NoAnswer("HiGHS does not take the program")
        if basis is not None:
            self.start(basis)

    def start(self, basis: Basis) -> None:
        """The next solve starts here, if this basis fits."""
        fitting = basis.grown(self._highs.getNumCol(), self._highs.getNumRow())
        if fitting is None:
            return
        given = self._names.HighsBasis()
        given.col_status = [self._status[basic] for basic in fitting.columns.tolist()]
        given.row_status = [self._status[basic] for basic in fitting.rows.tolist()]
        given.valid = True
        # A basis that HiGHS refuses costs time, not the answer.
        self._highs.setBasis(given)

    def change(self, row: int, column: int, value: float) -> None:
        """Sets one coefficient."""
        self._highs.changeCoeff(row, column, value)

    def bound(self, rows: Ints, lower: Floats, upper: Floats) -> None:
        """Sets the bounds of these rows."""
        self._highs.changeRowsBounds(len(rows), rows.astype(np.int32), lower, upper)

    def close(self, columns: Ints) -> None:
        """These columns are 0 from now on."""
        zeros = np.zeros(len(columns))
        self._highs.changeColsBounds(len(columns), columns.astype(np.int32), zeros, zeros)

    def add(self, cost: Floats, start: Ints, index: Ints, value: Floats) -> None:
        """Adds columns from 0 upwards at the end."""
        count = len(cost)
        zeros, no_end = np.zeros(count), np.full(count, np.inf)
        starts = start[:count].astype(np.int32)
        self._highs.addCols(count, cost, zeros, no_end, len(value), starts, index.astype(np.int32), value)

    def solve(self, most_steps: int | None = None) -> Answer | None:
        """The optimum, or None where no x is within the bounds; raises NoAnswer when HiGHS finds neither.

        With *most_steps*, it stops looking after so many steps of the simplex method.
        """
        highs, names = self._highs, self._names
        highs.setOptionValue("simplex_iteration_limit", _NO_END if most_steps is None else most_steps)
        highs.run()
        status = highs.getModelStatus()
        if status not in self._ends and most_steps is None:
            status = self._by_other_ways()
        if status == names.HighsModelStatus.kInfeasible:
            return None
        if status != names.HighsModelStatus.kOptimal:
            raise NoAnswer(f"HiGHS ended with: {highs.modelStatusToString(status)}")
        found = highs.getSolution()
        return Answer(
            np.array(found.col_value),
            float(highs.getInfo().objective_function_value),
            np.array(found.row_dual),
            np.array(found.col_dual),
        )

    def _by_other_ways(self) -> Any:
        """How it ends when it starts from nothing: the same way first, then others."""
        for option, value in _OTHER_WAYS:
            self._highs.clearSolver()
            self._highs.setOptionValue(option, value)
            self._highs.run()
            status = self._highs.getModelStatus()
            if status in self._ends:
                break
        for option, value in _OPTIONS:
            self._highs.setOptionValue(option, value)
        return status

    def basis(self) -> Basis:
        """The basis of the last answer."""
        # HiGHS has a quicker way to ask, which crashes where it found the answer without factorising.
        basis, basic = self._highs.getBasis(), int(self._status[1])
        columns, rows = basis.col_status, basis.row_status
        return Basis(
            np.array([int(status) for status in columns], np.int8) == basic,
            np.array([int(status) for status in rows], np.int8) == basic,
        )


#: Measured: primal simplex without presolve from the last basis is the fastest way between rounds.
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
_NO_END = 2**31 - 1
#: What is changed, one after the other, while there is no answer.
_OTHER_WAYS: tuple[tuple[str, Any], ...] = (("simplex_strategy", 4), ("simplex_strategy", 1), ("presolve", "choose"))
