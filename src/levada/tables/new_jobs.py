"""New jobs for the table, as complete and validated columns of its two blocks.

The simulator prepares many jobs together; each is then added by copying its column of both blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from levada.core.job import LARGEST_SIZE
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS, UNLIMITED
from levada.core.types import WHOLE, Bools, Floats, Ints
from levada.tables.job_table import NEW_FLOATS, NEW_INTS, needs_rows

#: Value of `aside`: the job is invalid and should have been rejected at submission.
IMPOSSIBLE = 2

_INT_ROW = {name: row for row, name in enumerate(INT_COLUMNS)}
_FLOAT_ROW = {name: row for row, name in enumerate(FLOAT_COLUMNS)}
_AMOUNTS = [_INT_ROW[name] for name in ("cpu", "memory", "gpu_memory", "servers", "server_cpu", "server_memory")]


class NewJobs(Mapping[str, Any]):
    """A read-only range of *count* jobs, from *first*, in both blocks; a mapping of columns by name."""

    __slots__ = ("count", "first", "floats", "ints", "timely")

    def __init__(self, ints: Ints, floats: Floats, first: int, count: int, timely: bool = True) -> None:
        self.ints, self.floats, self.first, self.count = ints, floats, first, count
        #: All submission times are finite.
        self.timely = timely

    @staticmethod
    def of(columns: Mapping[str, Any], count: int) -> NewJobs:
        """*count* jobs with these columns, and defaults for the others."""
        if isinstance(columns, NewJobs):
            return columns
        new = NewJobs(np.repeat(NEW_INTS, count, axis=1), np.repeat(NEW_FLOATS, count, axis=1), 0, count)
        for name, column in columns.items():
            new[name][:] = column
        if "desired" not in columns:
            new["desired"][:] = new["min"]
        for own, name in (("own_min", "min"), ("own_max", "max")):
            if own not in columns:
                new[own][:] = new[name]
        new["has_rows"][:] = needs_rows(new["milli"], new["servers"])
        new["since"][:] = new["submitted"]
        new["aside"][:] = np.where(_is_valid(new), 0, IMPOSSIBLE)
        new.timely = bool(np.isfinite(new["submitted"]).all())
        return new

    def cut(self, start: int, stop: int) -> NewJobs:
        """A part of the range, without a copy."""
        return NewJobs(self.ints, self.floats, self.first + start, stop - start, self.timely)

    def __getitem__(self, name: str) -> Any:
        row = _INT_ROW.get(name)
        column = self.ints[row] if row is not None else self.floats[_FLOAT_ROW[name]]
        return column[self.first : self.first + self.count]

    def __iter__(self) -> Iterator[str]:
        return iter((*INT_COLUMNS, *FLOAT_COLUMNS))

    def __len__(self) -> int:
        return len(INT_COLUMNS) + len(FLOAT_COLUMNS)


def _is_valid(new: NewJobs) -> Bools:
    """Which of these jobs have valid values, with which computations over all jobs work."""
    least, most, step, milli = (new[name] for name in ("min", "max", "step", "milli"))
    sizes = (least >= 1) & (most >= least) & (step >= 1) & (most <= LARGEST_SIZE)
    gpus = (milli >= 0) & ((milli <= WHOLE) | (milli % WHOLE == 0))
    requested = new.ints[_AMOUNTS]
    amounts = ((requested >= 0) & (requested < UNLIMITED)).all(axis=0) & (new["servers"] <= LARGEST_SIZE)
    weight = new["weight"]
    return np.asarray(sizes & gpus & amounts & (weight > 0) & ~np.isinf(weight) & ~np.isinf(new["steps"]))
