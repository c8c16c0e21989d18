"""Rows of text that become a trace; each cell knows its line and column.

Every reader fills a sheet, reads columns of numbers from it, and passes the trace to `checked`. Thus all formats report
their faults alike: all at once, in the order of the file, with file, line and column.
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

#: At most this many faults are reported.
MOST_FAULTS = 20


class Sheet:
    """The table of one file, and its faults."""

    def __init__(self, file: str, names: Sequence[str]) -> None:
        self.file, self.names = file, tuple(names)
        #: The line of each row, from 1.
        self.lines: list[int] = []
        self._rows: list[Sequence[str]] = []
        self._columns: dict[str, tuple[str, ...]] = {}
        self._faults: list[tuple[int, int, str]] = []  # line, column (-1: the whole line), text
        self._bad: set[tuple[int, str]] = set()  # line, column

    def add(self, line: int, cells: Sequence[str]) -> None:
        """Add a row; a row with a wrong number of cells is a fault."""
        if len(cells) == len(self.names):
            self.lines.append(line)
            self._rows.append(cells)
        else:
            self.add_fault(line, "", f"has {len(cells)} columns instead of {len(self.names)}")

    def select(self, rows: Iterable[int]) -> None:
        """Reduce the sheet to these rows, in this order."""
        selected = list(rows)
        self.lines = [self.lines[row] for row in selected]
        self._rows = [self._rows[row] for row in selected]
        self._columns = {}

    def add_fault(self, line: int, column: str, text: str) -> None:
        """Add a fault; *column* is "" for the whole line."""
        self._faults.append((line, self.names.index(column) if column else -1, text))

    def text(self, name: str) -> tuple[str, ...]:
        """Return a column as text; empty texts if the sheet has no such column."""
        if name not in self.names:
            return ("",) * len(self.lines)
        if not self._columns:
            columns = zip(*self._rows, strict=True) if self._rows else [()] * len(self.names)
            self._columns = dict(zip(self.names, columns, strict=True))
        return self._columns[name]

    def floats(self, name: str, *, unknown: Collection[str] = ()) -> Floats:
        """Return a column of finite numbers; nan for the texts in *unknown*."""

        def parse(cell: str) -> float:
            if cell in unknown:
                return nan
            value = float(cell)
            if not isfinite(value):
                raise ValueError
            return value

        return np.array(self.parsed(name, parse, nan, "a number"), np.float64)

    def ints(self, name: str) -> Ints:
        """Return a column of whole numbers."""
        return np.array(self.parsed(name, _whole, 1, "a whole number"), np.int64)

    def parsed(self, name: str, parse: Callable[[str], Any], default: Any, expected: str) -> list[Any]:
        """Return a column converted by *parse*; a ValueError gives *default* and the fault "must be *expected*"."""
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
                values.append(default)
                self._bad.add((self.lines[row], name))
                if faults < MOST_FAULTS:
                    self.add_fault(self.lines[row], name, f"must be {expected}, not {_quoted(cell)}")
                faults += 1
        return values

    def checked(self, trace: Trace, columns: Mapping[str, str]) -> Trace:
        """Return *trace* if it is valid; raises BadInput. *columns*: names in the file by column of `Trace`."""
        for row, column, text in check(trace, MOST_FAULTS):
            name = columns.get(column, "")
            if (self.lines[row], name) not in self._bad:
                shown = f", not {_quoted(self.text(name)[row])}" if name else ""
                self.add_fault(self.lines[row], name, (text if name else f"{column} {text}") + shown)
        self.verify()
        return trace

    def verify(self) -> None:
        """Raise BadInput if there are faults."""
        if self._faults:
            raise BadInput(self._fault(*fault) for fault in sorted(set(self._faults))[:MOST_FAULTS])

    def _fault(self, line: int, column: int, text: str) -> Fault:
        where = f"{self.file}:{line}"
        return Fault(f"{where}: column {column + 1} ({self.names[column]})" if column >= 0 else where, text)


def _whole(cell: str) -> int:
    value = int(cell)
    if abs(value) >= 2**63:
        raise ValueError
    return value


def _quoted(cell: str) -> str:
    """Return *cell* in quotes, on one line, cut after 40 characters."""
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")


def parse_sheet(file: str, text: str, delimiter: str = ",", *, quotes: bool = True) -> Sheet:
    """Parse a text whose first line names the columns; raises BadInput if it is empty."""
    lines = text.split("\n")
    # csv needs the line ends, because a quoted cell may contain some.
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
            duplicates = [name for index, name in enumerate(names) if name in names[:index]]
            if duplicates:
                raise BadInput.one(f"{file}:{reader.line_num}: duplicate column {duplicates[0]!r}")
            sheet = Sheet(file, names)
    except csv.Error as error:
        raise BadInput.one(f"{file}:{reader.line_num}: {error}") from None
    if sheet is None:
        raise BadInput.one(f"{file}: is empty")
    return sheet


def require(sheet: Sheet, *names: str) -> None:
    """Raise BadInput if one of these columns is missing."""
    missing = [name for name in names if name not in sheet.names]
    if missing:
        raise BadInput.one(f"{sheet.file}: has no column {', '.join(missing)}")


def data_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of *text* with their numbers, without empty lines and lines that begin with `#`."""
    for line, content in enumerate(text.split("\n"), 1):
        if content.strip() and not content.startswith("#"):
            yield line, content.removesuffix("\r")


def decode_text(data: bytes, file: str) -> str:
    """Decode the content of *file*; raises BadInput if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput.one(f"{file}: not UTF-8 at byte {error.start}") from None


def format_number(value: float) -> str:
    """Format *value* with the fewest digits that restore it exactly, without a trailing `.0`."""
    text = repr(float(value))
    return text.removesuffix(".0")
