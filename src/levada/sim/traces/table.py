"""Levada's own traces, CSV or parquet: a column for each of `Trace`, and any others as text.

Only `arrival_s` has to be there. An empty cell (null in parquet) is unknown or none; GPU types are joined by `;`.
What is written comes back as it was, to the last bit.
"""

from __future__ import annotations

import csv
import io
from difflib import get_close_matches
from math import isnan
from typing import Any

import numpy as np

from levada.errors import BadInput, LevadaError
from levada.sim.traces.sheet import Sheet, demand, number, sheet_of
from levada.sim.traces.trace import TEXTS, Trace

FLOATS = ("arrival_s", "steps", "duration_s", "weight", "slo", "deadline_s")
INTS = ("scale", "min_workers", "max_workers")
NAMED = ("workload", "gpu_types")
COLUMNS = (
    "arrival_s", "workload", "scale", "steps", "duration_s", "weight", "slo", "deadline_s", "min_workers",
    "max_workers", "gpu_types",
)  # fmt: skip


def parse(file: str, text: str) -> Trace:
    """The trace in a CSV; raises BadInput with all faults."""
    return _trace(sheet_of(file, text))


def parse_parquet(file: str, data: bytes) -> Trace:
    """The trace in a parquet file; raises BadInput with all faults. A row counts as a line, from 1."""
    polars = _polars()
    if data[-4:] != b"PAR1" or len(data) < 12:
        raise BadInput.one(f"{file}: is cut off: a parquet file ends as it begins")
    try:
        frame = polars.read_parquet(io.BytesIO(data))
        columns = [_cells(frame[name].to_list()) for name in frame.columns]
    except (polars.exceptions.PolarsError, polars.exceptions.PanicException) as error:
        # Damaged pages make polars panic, which is no Exception to Python.
        raise BadInput.one(f"{file}: not parquet: {str(error).splitlines()[0]}") from None
    sheet = Sheet(file, frame.columns)
    for row, cells in enumerate(zip(*columns, strict=True), 1):
        sheet.add(row, cells)
    return _trace(sheet)


def render(trace: Trace) -> str:
    """*trace* as a CSV; columns that say nothing are left out."""
    columns = {name: _cells(values) for name, values in _columns(trace).items()}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()


def render_parquet(trace: Trace) -> bytes:
    """*trace* as a parquet file; columns that say nothing are left out."""
    polars = _polars()
    frame = polars.DataFrame(
        {name: [None if _empty(each) else each for each in v] for name, v in _columns(trace).items()}
    )
    out = io.BytesIO()
    frame.write_parquet(out)
    return out.getvalue()


def _columns(trace: Trace) -> dict[str, list[Any]]:
    """What has to be written: numbers as numbers, GPU types as one text."""
    rigid = np.array_equal(trace.min_workers, trace.scale) and np.array_equal(trace.max_workers, trace.scale)
    columns: dict[str, list[Any]] = {}
    for name in COLUMNS:
        values = getattr(trace, name)
        cells = [";".join(types) for types in values] if name == "gpu_types" else list(np.asarray(values).tolist())
        silent = rigid if name in ("min_workers", "max_workers") else all(map(_empty, cells))
        if name == "arrival_s" or not silent:
            columns[name] = cells
    return columns | {name: list(column) for name, column in trace.texts.items()}


def _trace(sheet: Sheet) -> Trace:
    demand(sheet, "arrival_s")
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
    """Values of a column as text."""
    return ["" if _empty(each) else number(each) if isinstance(each, float) else str(each) for each in values]


def _empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and isnan(value))


def _polars() -> Any:
    try:
        import polars
    except ImportError:
        raise LevadaError("parquet needs polars: pip install 'levada[sim]', or use CSV") from None
    return polars
