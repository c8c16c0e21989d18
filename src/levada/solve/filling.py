"""Water-filling: levels rise together until some can rise no more, and the others go on from there.

No integer program is needed to find out who can rise no more: a row with a dual above 0 is tight in every optimum.
Every later answer is among the optima of every step before, so that columns that are 0 in all of these stay 0, and
rows that are tight stay tight. This keeps the program small. Above all it keeps rounding out: if what can no longer
move were only held by inequalities, hundreds of steps later the optimum would be among corners that are nothing but
noise.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from levada.core.types import Bools, Floats, Ints
from levada.solve.highs import Answer, NoAnswer
from levada.solve.levels import NOISE
from levada.solve.pairs import Columns

#: A level this near to the highest one possible has reached it.
_AT_MOST = 1 - 1e-12
#: Pivots after which a leap is given up: those that succeed need few.
_STEPS = 100
_NOBODY = np.zeros(0, np.int64)


class Filled(msgspec.Struct, frozen=True):
    """All levels, and an answer that has them."""

    answer: Answer
    levels: Floats


def fill(columns: Columns, answer: Answer, pace_of: Callable[[Bools], Floats] | None = None) -> Filled:
    """Goes on from the first *answer* until no row can rise; raises NoAnswer.

    *pace_of* gives the pace of every row for those that can still rise (Gavel's entities hand on what their jobs can
    take no more); without it the paces stay as they are.
    """
    program = columns.program
    active = program.part.copy()
    leaps = _Leaps(columns)
    ahead = _NOBODY
    while active.any():
        t = float(answer.x[0]) * program.unit
        levels = program.base + program.pace * t
        final = _final(columns, answer, active, ahead)
        active[final] = False
        program.hold(final, levels[final])
        columns.narrow(answer)
        if not active.any():
            break
        if pace_of is None:
            found = leaps.attempt(active, final, levels)
        else:
            pace, found = pace_of(active), None
            changed = np.flatnonzero(active & (pace != program.pace))
            program.set(changed, pace[changed], levels[changed] - pace[changed] * t)
        answer, ahead = found or (columns.solve()[0], _NOBODY)
    return Filled(answer, np.where(program.part, program.base, 0.0))


def _final(columns: Columns, answer: Answer, active: Bools, ahead: Ints) -> Ints:
    """The active rows that can rise no more, and those that have leapt *ahead* to where they could at most."""
    program = columns.program
    dual = -answer.dual[len(program.capacity) :: 2]
    # A row that waits for its turn has no pace; it may be known already that it will not rise.
    final = active & (np.where(program.pace > 0, program.force(answer), dual) > NOISE)
    if not (final & (program.pace > 0)).any() and not len(ahead):
        raise NoAnswer("no row holds the level down")
    final[ahead] = True
    return np.flatnonzero(final)


class _Leaps:
    """Steps that take several rows at once to what they could have at most, where nothing else is in their way.

    While rows end there one after the other, ever more of them are tried; when it fails, ever more rarely.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._stride, self._pause, self._failures = 1, 0, 0

    def attempt(self, active: Bools, final: Ints, levels: Floats) -> tuple[Answer, Ints] | None:
        """The next answer and the rows that leapt, after a step in which these rows ended; None = one step more."""
        at_most = (levels[final] >= self._columns.most[final] * _AT_MOST).all()
        self._stride = 2 * self._stride if at_most else 1
        self._pause -= 1
        if self._stride == 1 or self._pause >= 0:
            return None
        found = self._leap(np.flatnonzero(active))
        self._failures = 0 if found else self._failures + 1
        if found is None:
            self._stride, self._pause = 1, 2**self._failures
        return found

    def _leap(self, rows: Ints) -> tuple[Answer, Ints] | None:
        """The answer with the next rows at their ends; None where something else stops the others before that."""
        columns, program = self._columns, self._columns.program
        reach = (columns.most[rows] - program.base[rows]) / program.pace[rows]
        order = np.argsort(reach, kind="stable")[: min(self._stride, len(rows) - 1)]
        if not len(order):
            return None
        ahead, last = rows[order], float(reach[order[-1]])
        before = program.model.basis()
        pace, base = program.pace[ahead], program.base[ahead]
        program.hold(ahead, columns.most[ahead])
        try:
            answer, _ = columns.solve(_STEPS + len(ahead))
            if answer.x[0] * program.unit >= last * _AT_MOST:
                return answer, ahead
        except NoAnswer:
            pass
        program.set(ahead, pace, base)
        program.model.start(before)
        return None
