"""Print measurements as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from bench.timing import quantile


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One measurement."""

    bench: str
    what: str
    kernels: str = ""
    jobs: int = 0
    gpus: int = 0
    #: Number of samples.
    samples: int = 0
    unit: str = "ms"
    p50: float | None = None
    p99: float | None = None
    limit: float | None = None
    #: Whether p99 (or the only figure) is within the limit.
    ok: bool | None = None
    #: Median of each part.
    parts: dict[str, float] = {}
    note: str = ""


_UNITS = {"ms": 1e3, "µs": 1e6, "s": 1.0}


def measured(seconds: Sequence[float], *, limit: float | None = None, unit: str = "ms", **fields: object) -> Record:
    """Return a record of these times; *limit* is in *unit*."""
    values = [value * _UNITS[unit] for value in seconds]
    worst = quantile(values, 0.99)
    columns = {
        "samples": len(values),
        "unit": unit,
        "p50": round(quantile(values, 0.5), 3),
        "p99": round(worst, 3),
        "limit": limit,
        "ok": None if limit is None else worst <= limit,
        **fields,
    }
    return msgspec.convert(columns, Record)


_HEADER = ("what", "kernels", "jobs", "gpus", "n", "p50", "p99", "limit", "", "parts (p50) or note")


class Printer:
    """Prints records as they are added, or all at the end as JSON."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._records: list[Record] = []

    def title(self, text: str) -> None:
        """Begin a table."""
        if not self._as_json:
            print(f"\n{text}\n{_line(_HEADER)}", flush=True)

    def add(self, record: Record) -> None:
        """Add a record."""
        self._records.append(record)
        if not self._as_json:
            print(_line(_cells(record)), flush=True)

    def end(self) -> None:
        """Print the JSON, or a summary of the limits."""
        if self._as_json:
            print(json.dumps(msgspec.to_builtins(self._records), indent=2, ensure_ascii=False))
            return
        missed = [record for record in self._records if record.ok is False]
        limited = sum(record.ok is not None for record in self._records)
        print(f"\n{limited - len(missed)} of {limited} figures within their limits")
        for record in missed:
            print(f"  MISSED: {record.bench}: {' '.join(cell for cell in _cells(record)[:8] if cell)}")


_WIDTHS = (26, 7, 7, 7, 5, 10, 10, 12, 6, 0)
_LEFT = (0, 1, 8, 9)


def _line(cells: Sequence[str]) -> str:
    parts = [
        cell.ljust(width) if at in _LEFT else cell.rjust(width)
        for at, (cell, width) in enumerate(zip(cells, _WIDTHS, strict=True))
    ]
    return " ".join(parts).rstrip()


def _cells(record: Record) -> tuple[str, ...]:
    parts = "  ".join(f"{name} {_number(value)}" for name, value in record.parts.items())
    return (
        record.what,
        record.kernels,
        _count(record.jobs),
        _count(record.gpus),
        str(record.samples) if record.samples else "",
        f"{_number(record.p50)} {record.unit}" if record.p50 is not None else "",
        f"{_number(record.p99)} {record.unit}" if record.p99 is not None else "",
        f"{_number(record.limit)} {record.unit}" if record.limit is not None else "",
        "" if record.ok is None else "ok" if record.ok else "MISSED",
        "  ".join(text for text in (parts, record.note) if text),
    )


def _count(number: int) -> str:
    return f"{number:,}" if number else ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
