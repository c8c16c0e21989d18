"""Water-filling: all levels rise together; saturated rows are fixed.

No integer program is needed to detect saturated rows: a row with a dual above 0 is tight in all optima. Each later
solution is an optimum of all earlier steps, so columns that are 0 in all optima stay 0, and tight rows stay tight. This
keeps the program small and, above all, avoids accumulated rounding: with inequalities instead, the optimum after
hundreds of steps would be a vertex that only exists due to noise.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.solve.highs import LpSolution, NoSolution
from levada.solve.levels import NOISE
from levada.solve.pairs import PairColumns

#: A level of this fraction of its maximum has reached it.
_SATURATED = 1 - 1e-12
#: Iteration limit of a batch, besides its size: batches that succeed need few.
_BATCH_ITERATIONS = 100
_NO_ROWS = np.zeros(0, np.int64)


class Filled(msgspec.Struct, frozen=True):
    """All levels, and a solution with these levels."""

    solution: LpSolution
    levels: Floats


def fill(columns: PairColumns, solution: LpSolution, slopes_of: Callable[[Bools], Floats] | None = None) -> Filled:
    """Continue from the first *solution* until no row can rise; raises NoSolution.

    *slopes_of* computes the slopes of all rows from the rows that can still rise (in Gavel, the other jobs of an entity
    get what saturated jobs cannot use); without it slopes do not change.
    """
    program = columns.program
    active = program.runnable.copy()
    batches = _Batches(columns)
    batch = _NO_ROWS
    while active.any():
        t = float(solution.x[0]) * program.unit
        levels = program.base + program.slope * t
        final = _final(columns, solution, active, batch)
        active[final] = False
        program.fix_level(final, levels[final])
        columns.restrict_to_face(solution)
        if not active.any():
            break
        if slopes_of is None:
            step = batches.attempt(active, final, levels)
        else:
            slope, step = slopes_of(active), None
            changed = np.flatnonzero(active & (slope != program.slope))
            program.set(changed, slope[changed], levels[changed] - slope[changed] * t)
        solution, batch = step or (columns.solve()[0], _NO_ROWS)
    return Filled(solution, np.where(program.runnable, program.base, 0.0))


def _final(columns: PairColumns, solution: LpSolution, active: Bools, batch: Ints) -> Ints:
    """The active rows that are saturated, and those of *batch*, which are at their maxima."""
    program = columns.program
    dual = -solution.dual[len(program.capacity) :: 2]
    # A queued row of a FIFO entity has slope 0; its dual may already show that it cannot rise.
    final = active & (np.where(program.slope > 0, program.blocking(solution), dual) > NOISE)
    if not (final & (program.slope > 0)).any() and not len(batch):
        raise NoSolution("no row limits the level")
    final[batch] = True
    return np.flatnonzero(final)


class _Batches:
    """Fix several rows at their maximum levels in one step.

    The batch size doubles while rows reach their maxima; after failures, attempts become exponentially rarer.
    """

    def __init__(self, columns: PairColumns) -> None:
        self._columns = columns
        self._size, self._pause, self._failures = 1, 0, 0

    def attempt(self, active: Bools, final: Ints, levels: Floats) -> tuple[LpSolution, Ints] | None:
        """The next solution and its batch, after a step that saturated the rows *final*; None = take a single step."""
        at_max = (levels[final] >= self._columns.max_level[final] * _SATURATED).all()
        self._size = 2 * self._size if at_max else 1
        self._pause -= 1
        if self._size == 1 or self._pause >= 0:
            return None
        step = self._step(np.flatnonzero(active))
        self._failures = 0 if step else self._failures + 1
        if step is None:
            self._size, self._pause = 1, 2**self._failures
        return step

    def _step(self, rows: Ints) -> tuple[LpSolution, Ints] | None:
        """Fix the next rows at their maxima; None if other rows are saturated before."""
        columns, program = self._columns, self._columns.program
        reach = (columns.max_level[rows] - program.base[rows]) / program.slope[rows]
        order = np.argsort(reach, kind="stable")[: min(self._size, len(rows) - 1)]
        if not len(order):
            return None
        batch, last = rows[order], float(reach[order[-1]])
        before = program.model.basis()
        slope, base = program.slope[batch], program.base[batch]
        program.fix_level(batch, columns.max_level[batch])
        try:
            solution, _ = columns.solve(_BATCH_ITERATIONS + len(batch))
            if solution.x[0] * program.unit >= last * _SATURATED:
                return solution, batch
        except NoSolution:
            pass
        program.set(batch, slope, base)
        program.model.set_basis(before)
        return None
