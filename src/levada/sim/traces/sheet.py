"""Rows of text on their way to a trace: each value knows the line and the column it came from.

Every reader fills a sheet, asks it for columns of numbers and hands both to `checked`. So all formats report their
faults in one way: all of them at once, in the order of the file, each with file, line and column.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import isfinite, nan
from typing import Any

import numpy as np

from levada.core.types import Floats, Ints
from levada.errors import BadInput, Fault
from levada.sim.traces.trace import Trace, check

#: More faults than a person mends in one go are not shown.
MOST_FAULTS = 20


class Sheet:
    """The table of one file."""

    def __init__(self, file: str, names: Sequence[str]) -> None:
        self.file, self.names = file, tuple(names)
        #: The line of each row, from 1.
        self.lines: list[int] = []
        self._rows: list[Sequence[str]] = []
        self._columns: dict[str, tuple[str, ...]] = {}
        self._faults: list[tuple[int, int, str]] = []  # line, column or -1 for the whole line, sentence
        self._bad: set[tuple[int, str]] = set()  # line, column

    def add(self, line: int, cells: Sequence[str]) -> None:
        """Takes a row; one that has not as many cells as there are names is a fault."""
        if len(cells) == len(self.names):
            self.lines.append(line)
            self._rows.append(cells)
        else:
            self.blame(line, "", f"has {len(cells)} columns instead of {len(self.names)}")

    def keep(self, rows: Iterable[int]) -> None:
        """Forgets all rows but these, and has them in this order."""
        places = list(rows)
        self.lines = [self.lines[place] for place in places]
        self._rows = [self._rows[place] for place in places]
        self._columns = {}

    def blame(self, line: int, column: str, text: str) -> None:
        """Notes a fault; *column* is empty where the whole line is meant."""
        self._faults.append((line, self.names.index(column) if column else -1, text))

    def text(self, name: str) -> tuple[str, ...]:
        """A column as it stands; empty texts where the sheet has no such column."""
        if name not in self.names:
            return ("",) * len(self.lines)
        if not self._columns:
            columns = zip(*self._rows, strict=True) if self._rows else [()] * len(self.names)
            self._columns = dict(zip(self.names, columns, strict=True))
        return self._columns[name]

    def floats(self, name: str, *, unknown: Collection[str] = ()) -> Floats:
        """A column of finite numbers; `nan` for the texts that mean *unknown*."""

        def parse(cell: str) -> float:
            if cell in unknown:
                return nan
            value = float(cell)
            if not isfinite(value):
                raise ValueError
            return value

        return np.array(self.parsed(name, parse, nan, "a number"), np.float64)

    def ints(self, name: str) -> Ints:
        """A column of whole numbers."""
        return np.array(self.parsed(name, _whole, 1, "a whole number"), np.int64)

    def parsed(self, name: str, parse: Callable[[str], Any], otherwise: Any, what: str) -> list[Any]:
        """A column as *parse* reads it; where it raises ValueError, *otherwise*, and a fault: `must be` *what*."""
        cells = self.text(name)
        try:
            return list(map(parse, cells))
        except ValueError:
            pass
        values: list[Any] = []
        faults = 0
        for row, cell in enumerate(cells):
            try:
                values.append(parse(cell))
            except ValueError:
                values.append(otherwise)
                self._bad.add((self.lines[row], name))
                if faults < MOST_FAULTS:
                    self.blame(self.lines[row], name, f"must be {what}, not {_shown(cell)}")
                faults += 1
        return values

    def checked(self, trace: Trace, columns: Mapping[str, str]) -> Trace:
        """*trace*, if nothing is wrong with it; raises BadInput. *columns*: names in the file, by column of a trace."""
        for row, column, text in check(trace, MOST_FAULTS):
            name = columns.get(column, "")
            if (self.lines[row], name) not in self._bad:
                shown = f", not {_shown(self.text(name)[row])}" if name else ""
                self.blame(self.lines[row], name, (text if name else f"{column} {text}") + shown)
        self.verify()
        return trace

    def verify(self) -> None:
        """Raises BadInput if any fault was noted."""
        if self._faults:
            raise BadInput(self._fault(*each) for each in sorted(set(self._faults))[:MOST_FAULTS])

    def _fault(self, line: int, column: int, text: str) -> Fault:
        where = f"{self.file}:{line}"
        return Fault(f"{where}: column {column + 1} ({self.names[column]})" if column >= 0 else where, text)


def _whole(cell: str) -> int:
    value = int(cell)
    if abs(value) >= 2**63:
        raise ValueError
    return value


def _shown(cell: str) -> str:
    """*cell* in quotes, on one line and not for ever."""
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")


def sheet_of(file: str, text: str, delimiter: str = ",", *, quotes: bool = True) -> Sheet:
    """The sheet of a text whose first line names the columns; raises BadInput where it has no such line."""
    lines = text.split("\n")
    # csv wants to see where a line ends, for a quoted cell may hold one.
    reader = csv.reader((line + "\n" for line in lines), delimiter=delimiter, quoting=0 if quotes else 3)
    sheet: Sheet | None = None
    try:
        for cells in reader:
            if not "".join(cells).strip():
                continue
            if sheet is not None:
                sheet.add(reader.line_num, cells)
                continue
            if cells[0].startswith("#"):
                continue
            names = [name.strip() for name in cells]
            twice = [name for place, name in enumerate(names) if name in names[:place]]
            if twice:
                raise BadInput.one(f"{file}:{reader.line_num}: column {twice[0]!r} is given twice")
            sheet = Sheet(file, names)
    except csv.Error as error:
        raise BadInput.one(f"{file}:{reader.line_num}: {error}") from None
    if sheet is None:
        raise BadInput.one(f"{file}: is empty")
    return sheet


def demand(sheet: Sheet, *names: str) -> None:
    """Raises BadInput where one of these columns is missing."""
    missing = [name for name in names if name not in sheet.names]
    if missing:
        raise BadInput.one(f"{sheet.file}: has no column {', '.join(missing)}")


def rows_of(text: str) -> Iterator[tuple[int, str]]:
    """The lines of *text* with their numbers; neither empty ones nor those that begin with `#`."""
    for line, content in enumerate(text.split("\n"), 1):
        if content.strip() and not content.startswith("#"):
            yield line, content.removesuffix("\r")


def text_of(data: bytes, file: str) -> str:
    """The text of a file; raises BadInput where it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput.one(f"{file}: not UTF-8 at byte {error.start}") from None


def number(value: float) -> str:
    """*value* in the fewest digits that give it back, without a trailing `.0`."""
    text = repr(float(value))
    return text.removesuffix(".0")
