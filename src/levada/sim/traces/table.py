"""Levada's traces in CSV or parquet: columns of `Trace`, others as text.

Only `arrival_s` is required. An empty cell (null in parquet) means unknown or none; GPU types are joined by `;`. A
round trip restores every bit.
"""

from __future__ import annotations

import csv
import io
from difflib import get_close_matches
from math import isnan
from typing import Any

import numpy as np

from levada.errors import BadInput, MissingExtra
from levada.sim.traces.sheet import Sheet, format_number, parse_sheet, require
from levada.sim.traces.trace import TEXTS, Trace

FLOATS = ("arrival_s", "steps", "duration_s", "weight", "slo", "deadline_s")
INTS = ("scale", "min_workers", "max_workers")
COLUMNS = (
    "arrival_s", "workload", "scale", "steps", "duration_s", "weight", "slo", "deadline_s", "min_workers",
    "max_workers", "gpu_types",
)  # fmt: skip


def parse(file: str, text: str) -> Trace:
    """Parse CSV; raises BadInput with all faults."""
    return _trace(parse_sheet(file, text))


def parse_parquet(file: str, data: bytes) -> Trace:
    """Parse parquet; raises BadInput with all faults. Rows count as lines, from 1."""
    polars = _polars()
    if data[-4:] != b"PAR1" or len(data) < 12:
        raise BadInput.one(f"{file}: truncated parquet file")
    try:
        frame = polars.read_parquet(io.BytesIO(data))
        columns = [_cells(frame[name].to_list()) for name in frame.columns]
    except (polars.exceptions.PolarsError, polars.exceptions.PanicException) as error:
        # Damaged pages make polars panic, which is not a PolarsError.
        raise BadInput.one(f"{file}: not parquet: {str(error).splitlines()[0]}") from None
    sheet = Sheet(file, frame.columns)
    for row, cells in enumerate(zip(*columns, strict=True), 1):
        sheet.add(row, cells)
    return _trace(sheet)


def render(trace: Trace) -> str:
    """Render *trace* as CSV, without columns that contain no values."""
    columns = {name: _cells(values) for name, values in _columns(trace).items()}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()


def render_parquet(trace: Trace) -> bytes:
    """Render *trace* as parquet, without columns that contain no values."""
    polars = _polars()
    frame = polars.DataFrame(
        {name: [None if _is_empty(value) else value for value in values] for name, values in _columns(trace).items()}
    )
    out = io.BytesIO()
    frame.write_parquet(out)
    return out.getvalue()


def _columns(trace: Trace) -> dict[str, list[Any]]:
    """Return the columns to write: numbers as numbers, GPU types as one text."""
    rigid = np.array_equal(trace.min_workers, trace.scale) and np.array_equal(trace.max_workers, trace.scale)
    columns: dict[str, list[Any]] = {}
    for name in COLUMNS:
        values = getattr(trace, name)
        cells = [";".join(types) for types in values] if name == "gpu_types" else list(np.asarray(values).tolist())
        redundant = rigid if name in ("min_workers", "max_workers") else all(map(_is_empty, cells))
        if name == "arrival_s" or not redundant:
            columns[name] = cells
    return columns | {name: list(column) for name, column in trace.texts.items()}


def _trace(sheet: Sheet) -> Trace:
    require(sheet, "arrival_s")
    known = (*COLUMNS, *TEXTS)
    for name in sheet.names:
        close = get_close_matches(name, known, n=1, cutoff=0.8)
        if name not in known and close:
            raise BadInput.one(f"{sheet.file}: unknown column {name}; did you mean {close[0]}?")
    if "" in sheet.names:
        raise BadInput.one(f"{sheet.file}: a column has no name")
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        if name not in sheet.names:
            continue
        if name in FLOATS:
            columns[name] = sheet.floats(name, unknown=() if name in ("arrival_s", "weight") else ("",))
        elif name in INTS:
            columns[name] = sheet.ints(name)
        elif name == "gpu_types":
            columns[name] = [tuple(filter(None, cell.split(";"))) for cell in sheet.text(name)]
        else:
            columns[name] = sheet.text(name)
    texts = {name: sheet.text(name) for name in sheet.names if name not in COLUMNS}
    return sheet.checked(Trace.of(texts=texts, **columns), {name: name for name in sheet.names})


def _cells(values: list[Any]) -> list[str]:
    """Return the values of a column as text."""
    return [
        "" if _is_empty(value) else format_number(value) if isinstance(value, float) else str(value) for value in values
    ]


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and isnan(value))


def _polars() -> Any:
    try:
        import polars
    except ImportError:
        raise MissingExtra("parquet", "sim") from None
    return polars
