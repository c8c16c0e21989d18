"""Jobs that are about to enter the table: their columns as its two blocks, complete and judged.

Many jobs that come one by one are laid out together; each then enters by copying its column of both blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from levada.core.job import LARGEST_SIZE
from levada.core.layout import FLOAT_COLUMNS, INT_COLUMNS, UNLIMITED
from levada.core.types import WHOLE, Bools, Floats, Ints
from levada.tables.jobtable import NEW_FLOATS, NEW_INTS, needs_rows

#: In the column `aside`: whoever submitted the job should have refused it.
IMPOSSIBLE = 2

_INT_ROW = {name: row for row, name in enumerate(INT_COLUMNS)}
_FLOAT_ROW = {name: row for row, name in enumerate(FLOAT_COLUMNS)}
_AMOUNTS = [_INT_ROW[name] for name in ("cpu", "memory", "gpu_memory", "servers", "server_cpu", "server_memory")]


class Newcomers(Mapping[str, Any]):
    """Both blocks, of which the columns from *first* on are meant, by name too; read only."""

    __slots__ = ("count", "first", "floats", "ints", "timely")

    def __init__(self, ints: Ints, floats: Floats, first: int, count: int, timely: bool = True) -> None:
        self.ints, self.floats, self.first, self.count = ints, floats, first, count
        #: All of them were submitted at a time that can be.
        self.timely = timely

    @staticmethod
    def of(columns: Mapping[str, Any], count: int) -> Newcomers:
        """So many jobs with these columns, and what a new job has in the others."""
        if isinstance(columns, Newcomers):
            return columns
        new = Newcomers(np.repeat(NEW_INTS, count, axis=1), np.repeat(NEW_FLOATS, count, axis=1), 0, count)
        for name, column in columns.items():
            new[name][:] = column
        if "desired" not in columns:
            new["desired"][:] = new["min"]
        for own, name in (("own_min", "min"), ("own_max", "max")):
            if own not in columns:
                new[own][:] = new[name]
        new["has_rows"][:] = needs_rows(new["milli"], new["servers"])
        new["since"][:] = new["submitted"]
        new["aside"][:] = np.where(_possible(new), 0, IMPOSSIBLE)
        new.timely = bool(np.isfinite(new["submitted"]).all())
        return new

    def cut(self, start: int, stop: int) -> Newcomers:
        """Some that follow each other. Nothing is copied."""
        return Newcomers(self.ints, self.floats, self.first + start, stop - start, self.timely)

    def __getitem__(self, name: str) -> Any:
        row = _INT_ROW.get(name)
        column = self.ints[row] if row is not None else self.floats[_FLOAT_ROW[name]]
        return column[self.first : self.first + self.count]

    def __iter__(self) -> Iterator[str]:
        return iter((*INT_COLUMNS, *FLOAT_COLUMNS))

    def __len__(self) -> int:
        return len(INT_COLUMNS) + len(FLOAT_COLUMNS)


def _possible(new: Newcomers) -> Bools:
    """Which of these jobs have numbers that can be: others would wait for ever, or make everybody stumble."""
    least, most, step, milli = (new[name] for name in ("min", "max", "step", "milli"))
    sizes = (least >= 1) & (most >= least) & (step >= 1) & (most <= LARGEST_SIZE)
    parts = (milli >= 0) & ((milli <= WHOLE) | (milli % WHOLE == 0))
    asked = new.ints[_AMOUNTS]
    amounts = ((asked >= 0) & (asked < UNLIMITED)).all(axis=0) & (new["servers"] <= LARGEST_SIZE)
    weight = new["weight"]
    return np.asarray(sizes & parts & amounts & (weight > 0) & ~np.isinf(weight) & ~np.isinf(new["steps"]))
