"""Read files as text, or as rows that know their line, so that faults can name it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path

from levada.errors import BadInput, Fault, MissingExtra

#: At most this many faults are reported; a file with more is the wrong file.
_MOST_FAULTS = 20
#: Tables of speeds and prices are far smaller; a device such as /dev/zero never ends by itself.
_MOST_BYTES = 256 * 2**20


class TextRow:
    """The fields of one row as text; an empty field counts as missing. Collects the faults of the row."""

    __slots__ = ("faults", "fields", "where")

    def __init__(self, where: str, fields: dict[str, str]) -> None:
        self.where = where
        self.fields = fields
        self.faults: list[Fault] = []

    def fault(self, field: str, text: str) -> None:
        """Add a fault of a field."""
        self.faults.append(Fault(f"{self.where}: {field}", text))

    def text(self, field: str) -> str:
        """Return a field; adds a fault if it is empty."""
        value = self.fields.get(field, "").strip()
        if not value:
            self.fault(field, "must not be empty")
        return value

    def whole(self, field: str, most: int) -> int:
        """Return a whole number from 1 to *most*; adds a fault if it is not one."""
        value = self._number(field)
        if value is None or not 1 <= value <= most or value != int(value):
            self.fault(field, f"must be a whole number from 1 to {most}")
            return 1
        return int(value)

    def positive(self, field: str) -> float:
        """Return a number above 0; adds a fault if it is not one."""
        value = self._number(field)
        if value is None or value <= 0:
            self.fault(field, "must be a number above 0")
            return 1.0
        return value

    def rate(self, field: str) -> float:
        """Return a rate in steps/s; adds a fault if it is not one."""
        value = self._number(field)
        if value is None or value < 0:
            self.fault(field, "must be a number of steps/s, 0 or more")
            return 0.0
        return value

    def _number(self, field: str) -> float | None:
        try:
            value = float(self.fields.get(field, ""))
        except ValueError:
            return None
        return value if isfinite(value) else None


def csv_rows(path: Path, needed: Sequence[str], faults: list[Fault]) -> Iterator[TextRow]:
    """Yield the rows of a CSV file; its first line must name at least the *needed* columns. Raises BadInput."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            if check_header(path, reader.fieldnames or (), needed, faults):
                for fields in reader:
                    where = f"{path}:{reader.line_num}"
                    if fields.pop(None, None) is not None:
                        faults.append(Fault(where, "has more fields than the header"))
                        continue
                    yield TextRow(where, fields)
    except (OSError, ValueError, csv.Error) as error:
        raise _unreadable(path, error) from None


def parquet_rows(path: Path, needed: Sequence[str], faults: list[Fault]) -> Iterator[TextRow]:
    """Yield the rows of a parquet file with at least the *needed* columns; raises BadInput."""
    try:
        import polars
    except ImportError:
        raise MissingExtra("parquet", "sim") from None
    try:
        frame = polars.read_parquet(path)
    except OSError as error:
        raise BadInput.one(error.strerror or str(error), str(path)) from None
    except polars.exceptions.PolarsError as error:
        raise BadInput.one(f"not parquet: {str(error).splitlines()[0]}", str(path)) from None
    if check_header(path, frame.columns, needed, faults):
        for number, fields in enumerate(frame.iter_rows(named=True), 1):
            yield TextRow(f"{path} row {number}", {k: "" if v is None else str(v) for k, v in fields.items()})


def check_header(path: Path, columns: Sequence[str], needed: Sequence[str], faults: list[Fault]) -> bool:
    """Return whether all *needed* columns are present and no column occurs twice; adds the faults."""
    missing = [name for name in needed if name not in columns]
    duplicates = sorted({name for name in columns if columns.count(name) > 1})
    faults += [Fault(f"{path}:1", f"has no column {name}; required columns: {', '.join(needed)}") for name in missing]
    faults += [Fault(f"{path}:1", f"has two columns {name}") for name in duplicates]
    return not missing and not duplicates


def read_text(path: Path) -> str:
    """Return the text of a file; raises BadInput."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise BadInput.one(f"is larger than {_MOST_BYTES >> 20} MiB", str(path))
        return content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> BadInput:
    not_text = isinstance(error, UnicodeDecodeError)
    return BadInput.one("not UTF-8" if not_text else getattr(error, "strerror", None) or str(error), str(path))


def raise_faults(faults: list[Fault]) -> None:
    """Raise BadInput if there are faults."""
    if len(faults) > _MOST_FAULTS:
        faults = [*faults[:_MOST_FAULTS], Fault("", f"and {len(faults) - _MOST_FAULTS} more faults")]
    if faults:
        raise BadInput(faults)
